"""The paper's network in PyTorch, for side-by-side runs."""

import numpy as np
import torch


def torch_twin(params: tuple) -> torch.nn.Module:
    """The same network with the same weights."""
    module = torch.nn.Sequential(
        torch.nn.Linear(784, 800), torch.nn.ReLU(), torch.nn.Linear(800, 10)
    )
    for layer, linear in zip(params, (module[0], module[2]), strict=True):
        linear.weight.data = torch.tensor(np.asarray(layer["w"]).T.copy())
        linear.bias.data = torch.tensor(np.asarray(layer["b"]))
    return module
