"""Tensors as NumPy arrays."""

from typing import Any

import numpy as np
import torch

from noisescale.evidence.problem import Array


def to_numpy(value: Any) -> Array:
    """A tensor or number as float64 on the host."""
    if isinstance(value, torch.Tensor):
        value = value.detach().to("cpu", torch.float64).numpy()
    return np.asarray(value, np.float64)
