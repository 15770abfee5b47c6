import pytest
import torch
import training


@pytest.fixture(autouse=True)
def _one_thread():
    """Bit-equality is promised at one thread, and engines set the number of threads as they need it."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def digits():
    return training.digits()
