"""What a layer's inputs and the gradients at its outputs say of its parameters' gradients.

A rule turns the inputs a (n, ...) and the output gradients b (n, k, ...) of one use of a module
into the factors (:mod:`noisescale.torch.factors`) of its parameters' per-example gradients. The
table goes by the module's exact type: a subclass may compute something else.

    Linear     y = W a + b              W: b a',  b: b
    Conv1d/2d  the same on patches      positions are the places of the patch
    Embedding  a row of a table         the row that was looked up: b
    norms      y = w x + b, x = norm(a) w: b x,   b: b
    others'    a norm or scale by its name, whose outputs are lines in w: b times df/dw

Modules that use a parameter elsewhere too, or in another layout, are found out by comparison with
plain differentiation (:mod:`noisescale.torch.capture`), not here.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from noisescale.torch.convolved import Convolved
from noisescale.torch.factors import Factor, Formed, Lookup, Outer, Summed

Rule = Callable[[nn.Module, Tensor, Tensor], dict[str, Factor]]


def rule_of(layer: nn.Module) -> Rule | None:
    """The rule for this module; None if it has none."""
    kind = type(layer)
    if kind is nn.Embedding and (layer.max_norm is not None or layer.scale_grad_by_freq):
        return None
    if kind in (nn.BatchNorm1d, nn.BatchNorm2d) and layer.running_mean is None:
        return None
    rule = RULES.get(kind) or NAMED_RULES.get(f"{kind.__module__}.{kind.__qualname__}")
    return _entry_by_entry if rule is None and _is_scale(layer) else rule


def _linear(layer: nn.Module, a: Tensor, b: Tensor) -> dict[str, Factor]:
    a, b = a.reshape(len(a), 1, -1, a.shape[-1]), _positions(b)
    return {"weight": Outer(a, b[:, :, None])} | _bias(layer, b)


def _transposed_linear(layer: nn.Module, a: Tensor, b: Tensor) -> dict[str, Factor]:
    a, b = a.reshape(len(a), 1, -1, a.shape[-1]), _positions(b)
    return {"weight": Outer(a, b[:, :, None], transposed=True)} | _bias(layer, b)


def _convolution(layer: nn.Module, a: Tensor, b: Tensor) -> dict[str, Factor]:
    return {"weight": Convolved(layer, a, b)} | _bias(layer, b.flatten(3).mT)


def _embedding(layer: nn.Module, a: Tensor, b: Tensor) -> dict[str, Factor]:
    index, b = a.reshape(len(a), -1), _positions(b)
    if layer.padding_idx is not None:  # of which PyTorch takes no gradient
        b = b * (index != layer.padding_idx)[:, None, :, None]
    return {"weight": Lookup(index, b, layer.num_embeddings)}


def _layer_norm(layer: nn.Module, a: Tensor, b: Tensor) -> dict[str, Factor]:
    shape = list(layer.normalized_shape)
    return _scaled(layer, functional.layer_norm(a, shape, eps=layer.eps), b, len(shape))


def _rms_norm(layer: nn.Module, a: Tensor, b: Tensor) -> dict[str, Factor]:
    shape = list(layer.normalized_shape)
    return _scaled(layer, functional.rms_norm(a, shape, eps=layer.eps), b, len(shape))


def _scaled(layer: nn.Module, x: Tensor, b: Tensor, n_axes: int) -> dict[str, Factor]:
    """A weight and a bias for each of the last ``n_axes``' numbers."""
    x, b = x[:, None].flatten(-n_axes), b.flatten(-n_axes)  # (n, 1, ..., d), (n, k, ..., d)
    made: dict[str, Factor] = {"weight": Formed(_positions(b * x).sum(dim=2))}
    return made | _bias(layer, _positions(b))


def _group_norm(layer: nn.Module, a: Tensor, b: Tensor) -> dict[str, Factor]:
    return _by_channel(layer, functional.group_norm(a, layer.num_groups, eps=layer.eps), b)


def _batch_norm(layer: nn.Module, a: Tensor, b: Tensor) -> dict[str, Factor]:
    """With its running statistics, as in evaluation mode."""
    x = functional.batch_norm(a, layer.running_mean, layer.running_var, eps=layer.eps)
    return _by_channel(layer, x, b)


def _by_channel(layer: nn.Module, x: Tensor, b: Tensor) -> dict[str, Factor]:
    x, b = x[:, None].flatten(2), b.flatten(2)
    shape = (*b.shape[:2], layer.weight.numel(), -1)  # channels come first
    made: dict[str, Factor] = {"weight": Formed((b * x).reshape(shape).sum(dim=3))}
    return made | _bias(layer, b.reshape(shape).mT)


def _is_scale(layer: nn.Module) -> bool:
    """Whether it may be a norm or scale of somebody's own: LlamaRMSNorm, LayerScale."""
    name, parameters = type(layer).__name__, list(layer.parameters())
    return (
        ("Norm" in name or "Scale" in name)
        and "Batch" not in name
        and all(p.ndim == 1 for p in parameters)
        and not any(layer.children())
        and bool(parameters)
    )


def _entry_by_entry(layer: nn.Module, a: Tensor, b: Tensor) -> dict[str, Factor]:
    """Parameters that each multiply, or are added to, a number of the last axis, a channel, or all.

    Outputs are then lines in each parameter p, f(a, p) = f(a, 0) + p (f(a, 1) - f(a, 0)). Nothing
    is returned for what is no such layer.
    """
    fixed = {name: t.detach().to(a.dtype) for name, t in layer.named_parameters()}
    buffers = {name: t.detach().clone() for name, t in layer.named_buffers()}
    made: dict[str, Factor] = {}
    for name, p in fixed.items():

        def outputs(x: Tensor, value: float, name: str = name, p: Tensor = p) -> Tensor:
            other = {name: torch.full_like(p, value)}
            return functional_call(layer, fixed | buffers | other, x)

        try:
            start = outputs(a, 0.0)
            slope = outputs(a, 1.0) - start
            line = torch.allclose(outputs(a[:1], -2.0), (start - 2 * slope)[:1], 1e-3, 1e-5)
        except (RuntimeError, TypeError, ValueError, AttributeError):
            return {}
        if not line or slope.shape != (len(b), *b.shape[2:]):
            return {}
        g = b * slope[:, None]  # (n, k, ...)
        if len(p) == g.shape[-1]:
            g = _positions(g).sum(dim=2)
        elif len(p) == g.shape[2]:
            g = g.flatten(3).sum(dim=3)
        elif len(p) == 1:
            g = g.flatten(2).sum(dim=2, keepdim=True)
        else:
            return {}
        made[name] = Formed(g)
    return made


def _bias(layer: nn.Module, b: Tensor) -> dict[str, Factor]:
    """From gradients (n, k, T, o); nothing if the layer has none."""
    return {} if getattr(layer, "bias", None) is None else {"bias": Summed(b)}


def _positions(b: Tensor) -> Tensor:
    """Output gradients (n, k, ..., o) with one axis of positions: (n, k, T, o)."""
    return b.reshape(*b.shape[:2], -1, b.shape[-1])


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _rms_norm,
    nn.GroupNorm: _group_norm,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
}
# Of packages that need not be installed: GPT-2's Linear, with its weight the other way round.
NAMED_RULES: dict[str, Rule] = {"transformers.pytorch_utils.Conv1D": _transposed_linear}
