"""Data that PyTorch's users have, as tensors; and tensors as NumPy arrays."""

from typing import Any

import numpy as np
import torch

from noisescale.checks import check_whole
from noisescale.errors import InputError
from noisescale.evidence.problem import Array


def collect(data: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """All inputs and targets of tensors, a dataset or a loader."""
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return torch.as_tensor(np.asarray(data[0])), torch.as_tensor(np.asarray(data[1]))
    if isinstance(data, torch.utils.data.DataLoader):
        pairs = [(x, y) for x, y in data]
        if not pairs:
            raise InputError("data holds no examples.")
        return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        check_whole("the number of examples in data", len(data), at_least=1)
        pairs = [data[i] for i in range(len(data))]
        return (
            torch.stack([torch.as_tensor(x) for x, _ in pairs]),
            torch.stack([torch.as_tensor(y) for _, y in pairs]),
        )
    raise InputError(
        f"data must be a Dataset, a DataLoader or a pair of tensors, got {type(data).__name__}."
    )


def to_numpy(value: Any) -> Array:
    """A tensor or number as float64 on the host."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    return np.asarray(value, np.float64)
