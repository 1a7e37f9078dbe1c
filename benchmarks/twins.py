"""Our networks in PyTorch, for side-by-side runs."""

import numpy as np
import torch


def torch_twin(params: tuple) -> torch.nn.Module:
    """The same network with the same weights."""
    parts: list[torch.nn.Module] = []
    for layer in params:
        weights = torch.tensor(np.asarray(layer["w"]).T.copy())
        linear = torch.nn.Linear(weights.shape[1], weights.shape[0])
        linear.weight.data = weights
        linear.bias.data = torch.tensor(np.asarray(layer["b"]))
        parts += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1])
