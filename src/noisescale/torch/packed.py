"""Recurrent layers over packed sequences, step by step, in plain operations.

PyTorch's own kernels for them, and for packing, read sizes where ``torch.func`` lets nothing be
read. With x_t the input and h, c the state at a step,

    RNN    h = tanh or relu (U x + a + W h + b)
    GRU    r, z = sigmoid(U x + a + W h + b),   n = tanh(U x + a + r (W h + b)),   h = (1-z) n + z h
    LSTM   i, f, o = sigmoid(...), g = tanh(U x + a + W h + b),   c = f c + i g,   h = P o tanh(c)

each with its own rows of U, W, a, b, and P the projection, if there is one. A sequence that has
ended keeps its state; the other direction begins at each sequence's own end.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode

States = tuple[Tensor, ...]  # h, and c of an LSTM: (examples, numbers) each
Step = Callable[[Tensor, States], States]


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


def run_packed(layer: nn.RNNBase, packed: PackedSequence, hx: Any = None) -> tuple[Any, Any]:
    """What the layer returns in evaluation mode: the outputs, packed, and the last states."""
    inputs = _steps(packed.data, packed.batch_sizes)
    first = _first_states(layer, packed, len(inputs[0]), hx)
    ends: list[States] = []
    for depth in range(layer.num_layers):
        outputs = []
        for direction in range(2 if layer.bidirectional else 1):
            step = _step(layer, depth, reverse=bool(direction))
            made, end = _walk(step, inputs, tuple(s[len(ends)] for s in first), bool(direction))
            outputs.append(made)
            ends.append(end)
        inputs = [torch.cat(parts, dim=1) for parts in zip(*outputs, strict=True)]
    last = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
    if packed.unsorted_indices is not None:
        last = tuple(state.index_select(1, packed.unsorted_indices) for state in last)
    order = packed.sorted_indices, packed.unsorted_indices
    outputs_again = PackedSequence(torch.cat(inputs), packed.batch_sizes, *order)
    return outputs_again, last if layer.mode == "LSTM" else last[0]


def _first_states(layer: nn.RNNBase, packed: PackedSequence, n: int, given: Any) -> States:
    """(layers and directions, examples, numbers), examples in the order of the packed ones."""
    if given is None:
        rows = layer.num_layers * (2 if layer.bidirectional else 1)
        sizes = [layer.proj_size or layer.hidden_size]
        sizes += [layer.hidden_size] if layer.mode == "LSTM" else []
        return tuple(packed.data.new_zeros(rows, n, size) for size in sizes)
    states = given if isinstance(given, tuple) else (given,)
    if packed.sorted_indices is None:
        return states
    return tuple(state.index_select(1, packed.sorted_indices) for state in states)


def _walk(
    step: Step, inputs: list[Tensor], first: States, reverse: bool
) -> tuple[list[Tensor], States]:
    """The outputs of every step, and the states at the ends.

    Sequences are sorted by length, so that at every step the first ones are those that go on.
    """
    states, outputs = first, [inputs[0]] * len(inputs)
    for t in reversed(range(len(inputs))) if reverse else range(len(inputs)):
        n = len(inputs[t])
        moved = step(inputs[t], tuple(state[:n] for state in states))
        states = tuple(torch.cat([new, old[n:]]) for new, old in zip(moved, states, strict=True))
        outputs[t] = moved[0]
    return outputs, states


def _step(layer: nn.RNNBase, depth: int, *, reverse: bool) -> Step:
    """One step of a layer in one direction."""

    def own(name: str) -> Tensor | None:
        found: Tensor | None = getattr(layer, f"{name}_l{depth}{'_reverse' * reverse}", None)
        return found

    U, W, a, b, P = (
        own(name) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
    )
    assert U is not None
    assert W is not None

    def step(x: Tensor, states: States) -> States:
        h = states[0]
        of_x, of_h = linear(x, U, a), linear(h, W, b)
        if layer.mode == "LSTM":
            i, f, g, o = (of_x + of_h).chunk(4, dim=1)
            c = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            return (h if P is None else linear(h, P)), c
        if layer.mode == "GRU":
            (xr, xz, xn), (hr, hz, hn) = of_x.chunk(3, dim=1), of_h.chunk(3, dim=1)
            z, n = (xz + hz).sigmoid(), (xn + (xr + hr).sigmoid() * hn).tanh()
            return ((1 - z) * n + z * h,)
        return ((of_x + of_h).tanh() if layer.mode == "RNN_TANH" else (of_x + of_h).relu(),)

    return step
