"""Send the records of a run to MLflow, TensorBoard or Weights & Biases."""
