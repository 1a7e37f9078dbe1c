"""Summed squared norms of single examples' gradients, as fast as they can be had.

For a layer's inputs a and output gradients b of n examples with T positions each, sum_i |g_i|^2
without axes for several rows and without forming what need not be formed:

    Linear   Gram matrices   sum_its (a_it . a_is + 1)(b_it . b_is), whose 1 is the bias's part,
             or directly     |sum_t b_it a_it'|^2, whichever takes less arithmetic
    Conv     directly, as the weight gradient of one convolution with n times as many groups; as
             Linear on patches where such a convolution is slow
    norms    (n, channels) numbers, formed
    tables   rows that were looked up, each once an example

A metric weights the squares of a parameter's entries (Adam's second moments). It rules out Gram
matrices. Whatever has no way here goes by the factors of :mod:`noisescale.torch.layer_rules`.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from noisescale.torch.convolved import Convolved, is_one_convolution, patches
from noisescale.torch.factors import Factor, Formed, Lookup, Outer
from noisescale.torch.layer_rules import rule_of

Metric = Mapping[str, Tensor]  # weights of the squared entries, by a parameter's own name
Fast = Callable[[nn.Module, Tensor, Tensor, int, frozenset[str]], Tensor]

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
# Small products run at a lower rate than large ones: what Gram matrices must save to be taken.
_GRAM_PRICE = 1.3
_BLOCK = 2**24  # numbers of gradients that are formed at a time


def sum_of_squares(
    layer: nn.Module, a: Tensor, b: Tensor, n: int, names: frozenset[str], metric: Metric | None
) -> Tensor:
    """sum_i |g_i|^2 over n examples and the layer's parameters ``names``, for its one use."""
    fast = FAST.get(type(layer)) if metric is None else None
    if fast is not None:
        return fast(layer, a, b, n, names)
    made = factors_of(layer, a, b, n, names)
    return torch.stack([squares_of(f, metric and metric[p]) for p, f in made.items()]).sum(dim=0)


def factors_of(
    layer: nn.Module, a: Tensor, b: Tensor, n: int, names: frozenset[str]
) -> dict[str, Factor]:
    """The factors of the gradients, one row an example, by the parameter's own name."""
    if isinstance(layer, BATCH_NORMS) and layer.training:
        made = _batch_norm(a, b, layer.eps)
    else:
        rule = rule_of(layer)
        assert rule is not None
        made = rule(layer, a, b[:, None])
    return {p: factor.of_examples(n) for p, factor in made.items() if p in names}


def squares_of(factor: Factor, metric: Tensor | None) -> Tensor:
    """The summed squared norms of a parameter's gradients.

    With a metric two numbers: of entries weighted by it, and of plain ones.
    """
    if metric is None:
        return factor.squared_norms().sum()
    if isinstance(factor, Lookup):
        squares = _looked_up_squares(factor.index, factor.b[:, 0], factor.n_rows)
    elif isinstance(factor, Outer):
        n = len(factor.a)
        block = max(1, _BLOCK // metric.numel())
        parts = [
            factor.chosen(slice(start, start + block)).squares() for start in range(0, n, block)
        ]
        squares = torch.stack(parts).sum(dim=0)
    else:
        squares = factor.squares()
    return weighted(squares, metric)


def weighted(squares: Tensor, metric: Tensor) -> Tensor:
    """The sum of squared entries, weighted by a metric, and the plain one."""
    squares = squares.to(metric.dtype)
    return torch.stack([torch.dot(squares, metric.reshape(-1)), squares.sum()])


def _linear(layer: nn.Module, a: Tensor, b: Tensor, n: int, names: frozenset[str]) -> Tensor:
    a, b = a.reshape(n, -1, a.shape[-1]), b.reshape(n, -1, b.shape[-1])
    return _multiplied(layer, a, b, names)


def _multiplied(layer: nn.Module, a: Tensor, b: Tensor, names: frozenset[str]) -> Tensor:
    """A weight that multiplies inputs a (n, T, i), with gradients b (n, T, o) at the outputs."""
    n, T, i = a.shape
    o = b.shape[2]
    bias = layer.bias is not None and "bias" in names
    if "weight" not in names:
        return _square(b.sum(dim=1))
    if T == 1:
        inputs = torch.linalg.vector_norm(a, dim=(1, 2)).square_()
        return torch.dot(inputs + 1 if bias else inputs, _norms(b).square_())
    if _GRAM_PRICE * T * (i + o) < i * o:
        inputs = torch.bmm(a, a.mT)
        if bias:
            inputs.add_(1)
        return torch.dot(inputs.view(-1), torch.bmm(b, b.mT).view(-1))
    block = max(1, _BLOCK // (i * o))
    total = sum(
        _square(torch.bmm(b[s : s + block].mT, a[s : s + block])) for s in range(0, n, block)
    )
    return total + _square(b.sum(dim=1)) if bias else total


def _convolution(layer: nn.Module, a: Tensor, b: Tensor, n: int, names: frozenset[str]) -> Tensor:
    if len(a) != n:
        made = factors_of(layer, a, b, n, names)
        return torch.stack([squares_of(f, None) for f in made.values()]).sum()
    if not is_one_convolution(layer, b.shape[2:].numel()) and layer.groups == 1:
        return _multiplied(layer, patches(layer, a)[:, 0], b.flatten(2).mT, names)
    total = b.new_zeros(())
    if "weight" in names:
        total = _square(Convolved(layer, a, b[:, None]).gradients())
    if layer.bias is not None and "bias" in names:
        total = total + _square(b.flatten(2).sum(dim=2))
    return total


def _embedding(layer: nn.Module, a: Tensor, b: Tensor, n: int, names: frozenset[str]) -> Tensor:
    index, b = a.reshape(n, -1), b.reshape(n, -1, b.shape[-1])
    if layer.padding_idx is not None:  # of which PyTorch takes no gradient
        b = b * (index != layer.padding_idx)[:, :, None]
    return _square(_rows(index, b, layer.num_embeddings)[1])


def _layer_norm(layer: nn.Module, a: Tensor, b: Tensor, n: int, names: frozenset[str]) -> Tensor:
    shape = list(layer.normalized_shape)
    x = functional.layer_norm(a, shape, eps=layer.eps)
    return _scaled(x, b, n, len(shape), layer, names)


def _rms_norm(layer: nn.Module, a: Tensor, b: Tensor, n: int, names: frozenset[str]) -> Tensor:
    shape = list(layer.normalized_shape)
    x = functional.rms_norm(a, shape, eps=layer.eps)
    return _scaled(x, b, n, len(shape), layer, names)


def _scaled(
    x: Tensor, b: Tensor, n: int, n_axes: int, layer: nn.Module, names: frozenset[str]
) -> Tensor:
    """A weight and a bias for each of the last ``n_axes``' numbers; x is overwritten."""
    width = b.shape[-n_axes:].numel()
    b = b.reshape(n, -1, width)
    total = b.new_zeros(())
    if "weight" in names:
        total = _square(x.view(n, -1, width).mul_(b).sum(dim=1))
    if getattr(layer, "bias", None) is not None and "bias" in names:
        total = total + _square(b.sum(dim=1))
    return total


def _group_norm(layer: nn.Module, a: Tensor, b: Tensor, n: int, names: frozenset[str]) -> Tensor:
    x = functional.group_norm(a, layer.num_groups, eps=layer.eps)
    shape, total = (n, -1, layer.num_channels, b.shape[2:].numel()), b.new_zeros(())
    b = b.reshape(shape)
    if "weight" in names:
        total = _square(x.view(shape).mul_(b).sum(dim=(1, 3)))
    if "bias" in names:
        total = total + _square(b.sum(dim=(1, 3)))
    return total


def _batch_norm(a: Tensor, b: Tensor, eps: float) -> dict[str, Factor]:
    """In training mode, with the statistics of the batch: contributions of its examples."""
    x = functional.batch_norm(a, None, None, training=True, eps=eps)
    axes = tuple(range(2, a.ndim))
    by_channel, alone = b * x, b
    if axes:
        by_channel, alone = by_channel.sum(dim=axes), b.sum(dim=axes)
    return {"weight": Formed(by_channel[:, None]), "bias": Formed(alone[:, None])}


def _rows(index: Tensor, b: Tensor, n_rows: int) -> tuple[Tensor, Tensor]:
    """Which (example, row) were looked up, and their gradients: (u,), (u, d)."""
    n, T = index.shape
    keys = (index + n_rows * torch.arange(n, device=index.device)[:, None]).reshape(-1)
    if n_rows <= 2 * T:  # a table of all rows is not longer
        seen, place = torch.arange(n * n_rows, device=index.device), keys
    else:
        seen, place = torch.unique(keys, return_inverse=True)
    rows = b.new_zeros(len(seen), b.shape[-1]).index_add_(0, place, b.flatten(0, 1))
    return seen, rows


def _looked_up_squares(index: Tensor, b: Tensor, n_rows: int) -> Tensor:
    """Squared entries of a table's gradients, summed over examples: (rows d,)."""
    seen, rows = _rows(index, b, n_rows)
    made = b.new_zeros(n_rows, b.shape[-1])
    return made.index_add_(0, seen % n_rows, rows.square_()).reshape(-1)


def _square(g: Tensor) -> Tensor:
    """The sum of squared entries."""
    flat = g.reshape(-1)
    return torch.dot(flat, flat)


def _norms(b: Tensor) -> Tensor:
    return torch.linalg.vector_norm(b, dim=tuple(range(1, b.ndim)))


FAST: dict[type[nn.Module], Fast] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _rms_norm,
    nn.GroupNorm: _group_norm,
}
