"""Gradients of single examples by one backward pass each, and what follows by the definitions."""

import torch


def contributions(losses, params):
    """(n, p): the gradient of each of n losses, with whatever masks the forward pass drew."""
    rows = []
    for loss in losses:
        g = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True)
        flat = [
            torch.zeros(p.numel(), dtype=p.dtype) if x is None else x.to_dense().reshape(-1)
            for p, x in zip(params, g, strict=True)
        ]
        rows.append(torch.cat(flat))
    return torch.stack(rows)


def noise_of(g):
    """|G|^2 without its bias and tr S, from gradients (n, p)."""
    mean = g.mean(0)
    trace = ((g - mean) ** 2).sum() / (len(g) - 1)
    return float(mean @ mean - trace / len(g)), float(trace)
