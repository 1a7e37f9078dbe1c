"""Packing and padding of sequences in plain operations, for calls that ``watch`` makes again.

PyTorch's own read sizes where ``torch.func`` lets nothing be read. Recurrent layers over packed
sequences read them too: ``watch`` leaves their parameters out, and the evidence refuses them.
"""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class PlainPacking(TorchFunctionMode):  # type: ignore[misc]  # PyTorch says nothing of its type
    """Lets sequences be packed and padded inside of ``torch.func``."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Any function of PyTorch as it is, but for those two."""
        plain = _PLAIN.get(getattr(func, "__name__", ""), func)
        return plain(*args, **(kwargs or {}))


def _packed(x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """What sequences, the longest first, have at each step, and how many go on there."""
    steps = x.transpose(0, 1) if batch_first else x
    known = lengths.tolist()
    sizes = [sum(length > t for length in known) for t in range(known[0])]
    data = torch.cat([step[:size] for step, size in zip(steps, sizes, strict=False)])
    return data, torch.tensor(sizes)


def _padded(
    data: Tensor, batch_sizes: Tensor, batch_first: bool, padding: float, total_length: int
) -> tuple[Tensor, Tensor]:
    """Sequences (T, n, ...) from packed ones, or (n, T, ...), and their lengths."""
    steps, n = _steps(data, batch_sizes), int(batch_sizes[0])
    sizes = [len(step) for step in steps]
    lengths = torch.tensor([sum(size > i for size in sizes) for i in range(n)])
    steps += [data[:0]] * (total_length - len(steps))
    whole = torch.stack(
        [torch.cat([x, data.new_full((n - len(x), *data.shape[1:]), padding)]) for x in steps],
        dim=1 if batch_first else 0,
    )
    return whole, lengths


_PLAIN = {"_pack_padded_sequence": _packed, "_pad_packed_sequence": _padded}


def _steps(data: Tensor, batch_sizes: Tensor) -> list[Tensor]:
    """What the sequences have at each step."""
    return list(torch.split(data, batch_sizes.tolist()))
