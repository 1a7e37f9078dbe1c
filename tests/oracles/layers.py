"""A layer's gradients by its rule, over all its uses: pairs of inputs and output gradients."""

import torch

from noisescale.torch.factors import added
from noisescale.torch.layer_rules import rule_of


def factors(layer, uses):
    """Of each of the layer's own parameters, by name, over all uses of the layer."""
    rule = rule_of(layer)
    if rule is None:
        raise TypeError(f"no rule for a {type(layer).__name__}")
    each = [rule(layer, a, b) for a, b in uses]
    return {name: added([use[name] for use in each]) for name in each[0]}


def per_example(layer, uses):
    """The gradients themselves: (n, k, size) of each parameter."""
    return {name: factor.gradients() for name, factor in factors(layer, uses).items()}


def kernel(layer, uses, others):
    """Products of the layer's gradients with those of other examples: (n k, n' k')."""
    theirs = factors(layer, others)
    parts = [factor.kernel(theirs[name]) for name, factor in factors(layer, uses).items()]
    return torch.stack(parts).sum(dim=0)


def squared_norms(layer, uses):
    """Squared norms of the layer's gradients: (n, k)."""
    parts = [factor.squared_norms() for factor in factors(layer, uses).values()]
    return torch.stack(parts).sum(dim=0)
