"""Tensors as NumPy arrays and numbers, and work on them by one thread each."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from noisescale.evidence.problem import Array

T = TypeVar("T")


def to_numpy(value: Any) -> Array:
    """A tensor or number as float64 on the host."""
    if isinstance(value, torch.Tensor):
        value = value.detach().to("cpu", torch.float64).numpy()
    return np.asarray(value, np.float64)


def side_by_side(calls: Sequence[Callable[[], T]]) -> list[T]:
    """What the calls return, each made by one of PyTorch's threads alone.

    For work that stays in a processor's cache, which several threads at one operation would spread
    over those of several: on two cores sums over gradients took twice the time of one.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        return [call() for call in calls]
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda call: call(), calls))
    finally:
        torch.set_num_threads(threads)


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
