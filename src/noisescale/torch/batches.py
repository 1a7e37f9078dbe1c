"""Data that PyTorch's users have: pairs, tuples, dicts; whole, as a dataset or from a loader.

Inputs are a tensor, or a tuple or dict of them, each with one row an example: what a module is
called with as ``module(x)``, ``module(*x)`` or ``module(**x)``. In a dict the targets stand under
``"labels"``, in a tuple they come last.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from noisescale.checks import check_whole
from noisescale.errors import InputError

LABELS = "labels"
_WANTED = "data must be a Dataset, a DataLoader or a pair of tensors"


def collect(data: Any) -> tuple[Any, torch.Tensor]:
    """All inputs and targets of tensors, a dataset or a loader, one row an example."""
    if isinstance(data, torch.utils.data.DataLoader):
        inputs, y = _joined([split(batch) for batch in data], torch.cat)
    elif isinstance(data, Mapping) or _is_pair(data):
        inputs, y = split(data)
    elif hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        check_whole("the number of examples in data", len(data), at_least=1)
        inputs, y = _joined([split(data[i]) for i in range(len(data))], torch.stack)
    else:
        raise InputError(f"{_WANTED}, got {type(data).__name__}.")
    n = count(inputs)
    if y.ndim == 0 or n != len(y):
        raise InputError(f"data has {n} inputs but {len(y) if y.ndim else 0} labels.")
    return inputs, y


def by_length(data: Any) -> list[Any]:
    """Data whose examples have one shape each: a loader may pad every batch to its own length."""
    if not isinstance(data, torch.utils.data.DataLoader):
        return [data]
    groups: dict[Any, list[tuple[Any, torch.Tensor]]] = {}
    for inputs, y in map(split, data):
        shapes = tuple(part.shape[1:] for part in (*leaves(inputs), y))
        groups.setdefault(shapes, []).append((inputs, y))
    return [_joined(pairs, torch.cat) for pairs in groups.values() or [[]]]


def split(batch: Any) -> tuple[Any, torch.Tensor]:
    """The inputs and the targets of a batch or of one example."""
    if isinstance(batch, Mapping):
        if LABELS not in batch:
            raise InputError(
                f"data in dicts needs its targets under '{LABELS}', but has {', '.join(batch)}."
            )
        rest = {name: _tensors(part) for name, part in batch.items() if name != LABELS}
        return rest, _tensor(batch[LABELS])
    if not isinstance(batch, Sequence) or isinstance(batch, str) or len(batch) < 2:
        raise InputError(f"{_WANTED}, but an item of it is a {type(batch).__name__}.")
    *inputs, y = batch
    return _tensors(inputs[0] if len(inputs) == 1 else tuple(inputs)), _tensor(y)


def leaves(inputs: Any) -> list[torch.Tensor]:
    """The tensors of some inputs."""
    if isinstance(inputs, torch.Tensor):
        return [inputs]
    parts = inputs.values() if isinstance(inputs, dict) else inputs
    return [tensor for part in parts for tensor in leaves(part)]


def count(inputs: Any) -> int:
    """The number of examples in some inputs."""
    lengths = sorted({len(tensor) if tensor.ndim else 0 for tensor in leaves(inputs)})
    if len(lengths) != 1 or lengths[0] == 0:
        raise InputError(
            f"inputs must have one row an example, but have {', '.join(map(str, lengths))} rows."
        )
    return lengths[0]


def counted_tokens(
    inputs: Any, labels: torch.Tensor, ignored: int, *, next_token: bool
) -> torch.Tensor:
    """The label of each token's output: padding left out, and the next token where that is meant.

    A dict's ``attention_mask`` says which tokens are padding, or ``decoder_attention_mask`` where
    labels are what a decoder is to say. Models of transformers that predict the next token take the
    tokens themselves as labels and shift them inside.
    """
    whose = "decoder_attention_mask" if is_decoded(inputs) else "attention_mask"
    mask = inputs.get(whose) if isinstance(inputs, dict) else None
    if mask is not None and mask.shape == labels.shape:
        labels = labels.masked_fill(mask == 0, ignored)
    if next_token:
        labels = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=ignored)
    return labels


def with_decoder_inputs(module: torch.nn.Module, inputs: Any, labels: torch.Tensor) -> Any:
    """The inputs with those of a decoder, which models of transformers make from their labels."""
    make = getattr(module, "prepare_decoder_input_ids_from_labels", None)
    encodes = getattr(getattr(module, "config", None), "is_encoder_decoder", False)
    if not (encodes and callable(make) and isinstance(inputs, dict)) or is_decoded(inputs):
        return inputs
    return inputs | {"decoder_input_ids": make(labels=labels)}


def is_decoded(inputs: Any) -> bool:
    """Whether some of the inputs are a decoder's."""
    return isinstance(inputs, dict) and any(name.startswith("decoder_input") for name in inputs)


def predicts_next_token(module: torch.nn.Module) -> bool:
    """Whether this is a model of transformers whose labels are its inputs."""
    can = getattr(module, "can_generate", None)
    encodes = getattr(getattr(module, "config", None), "is_encoder_decoder", True)
    return bool(callable(can) and can() and not encodes)


def mapped(function: Callable[[torch.Tensor], torch.Tensor], inputs: Any) -> Any:
    """``function`` of every tensor, in the structure of the inputs."""
    if isinstance(inputs, torch.Tensor):
        return function(inputs)
    if isinstance(inputs, dict):
        return {name: mapped(function, part) for name, part in inputs.items()}
    return tuple(mapped(function, part) for part in inputs)


def taken(inputs: Any, rows: Any) -> Any:
    """Some rows of the inputs."""
    return mapped(lambda tensor: tensor[rows], inputs)


def placed(inputs: Any, device: torch.device | str, precision: str) -> Any:
    """The inputs on a device, their real numbers in this precision."""
    dtype = getattr(torch, precision)
    return mapped(lambda t: t.to(device, dtype) if t.is_floating_point() else t.to(device), inputs)


def as_inputs(x: Any) -> Any:
    """Inputs without targets, as a module is called with them: tensors, arrays, tuples, dicts."""
    if isinstance(x, Mapping):
        return {name: _tensors(part) for name, part in x.items() if name != LABELS}
    return _tensors(x)


def _is_pair(data: Any) -> bool:
    """Whether these are whole arrays (x, ..., y), and not a list of examples."""
    if not isinstance(data, (tuple, list)) or len(data) < 2:
        return False
    if len(data) == 2 and isinstance(data, tuple):
        return not (_is_example(data[0]) and _is_example(data[1]))
    arrays = all(isinstance(part, (torch.Tensor, np.ndarray)) for part in data)
    return arrays or (len(data) == 2 and not any(map(_is_example, data)))


def _is_example(part: Any) -> bool:
    return isinstance(part, (tuple, Mapping))


def _tensors(inputs: Any) -> Any:
    """A tensor, or a tuple or dict of them."""
    if isinstance(inputs, Mapping):
        return {str(name): _tensors(part) for name, part in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(map(_tensors, inputs))
    if isinstance(inputs, list) and any(isinstance(part, torch.Tensor) for part in inputs):
        return tuple(map(_tensors, inputs))
    return _tensor(inputs)


def _tensor(values: Any) -> torch.Tensor:
    if isinstance(values, torch.Tensor):
        return values.detach()
    try:
        return torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"{_WANTED}, but holds a {type(values).__name__} that is no array of numbers."
        ) from None


def _joined(
    pairs: Iterable[tuple[Any, torch.Tensor]], join: Callable[[list[torch.Tensor]], torch.Tensor]
) -> tuple[Any, torch.Tensor]:
    pairs = list(pairs)
    if not pairs:
        raise InputError("data holds no examples.")
    try:
        return _join([inputs for inputs, _ in pairs], join), join([y for _, y in pairs])
    except (RuntimeError, KeyError, IndexError, AttributeError) as error:
        raise InputError(
            "the examples of data do not fit together: give all of them the same shape (pad "
            f"sequences to one length): {str(error).splitlines()[0]}"
        ) from error


def _join(parts: list[Any], join: Callable[[list[torch.Tensor]], torch.Tensor]) -> Any:
    first = parts[0]
    if isinstance(first, torch.Tensor):
        return join(parts)
    if isinstance(first, dict):
        return {name: _join([part[name] for part in parts], join) for name in first}
    return tuple(_join([part[i] for part in parts], join) for i in range(len(first)))
