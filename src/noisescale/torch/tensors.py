"""Tensors as NumPy arrays and numbers."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from noisescale.evidence.problem import Array


def to_numpy(value: Any) -> Array:
    """A tensor or number as float64 on the host."""
    if isinstance(value, torch.Tensor):
        value = value.detach().to("cpu", torch.float64).numpy()
    return np.asarray(value, np.float64)


def plain(tensor: torch.Tensor) -> NDArray[Any]:
    """A tensor as an array on the host; bfloat16, which NumPy lacks, as float32."""
    tensor = tensor.detach().cpu()
    return np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())


def as_prior(prior_precision: Any) -> Any:
    """A prior precision whose tensors are arrays."""
    if isinstance(prior_precision, dict):
        return {name: as_prior(value) for name, value in prior_precision.items()}
    return (
        to_numpy(prior_precision) if isinstance(prior_precision, torch.Tensor) else prior_precision
    )
