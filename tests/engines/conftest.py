import torch

torch.set_num_threads(1)  # bit-equality is promised at one thread
