"""What is learned: clients, batches, losses, scores."""
