"""Roots R' R = Lambda of the nll's Hessian in an example's outputs, by which curvature is a square.

For a softmax Lambda = diag(p) - p p'.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def softmax_root(logits: Array) -> Array:
    """The root of diag(p) - p p', which has rank C - 1, in full relative accuracy.

    With t the likeliest class, q the other probabilities, s = sqrt(q): in logits relative to t's it
    is diag(s) (I - s s') diag(s), and I - s s' = (I - s s'/(1 + sqrt(p_t)))^2. No difference of
    nearly equal numbers occurs, however certain the model is.
    """
    n, C = logits.shape
    order = np.argsort(-logits, axis=1, kind="stable")  # the likeliest class first
    z = np.take_along_axis(logits, order, axis=1)
    weights = np.exp(z - z[:, :1])
    p = weights / weights.sum(axis=1, keepdims=True)
    s = np.sqrt(p[:, 1:])  # (n, C - 1)
    M = np.eye(C - 1) - s[:, :, None] * s[:, None, :] / (1 + np.sqrt(p[:, :1, None]))
    relative = M * s[:, None, :]  # (n, C - 1, C - 1), acting on z_c - z_t
    root = np.zeros((n, C - 1, C))
    np.put_along_axis(root, np.broadcast_to(order[:, None, 1:], relative.shape), relative, axis=2)
    np.put_along_axis(
        root,
        np.broadcast_to(order[:, None, :1], (n, C - 1, 1)),
        -relative.sum(axis=2, keepdims=True),
        axis=2,
    )
    return root


def sequence_root(logits: Array, counts: NDArray[np.bool_]) -> Array:
    """R (n, T, C - 1, C) of n sequences of T tokens, of which some count.

    ``logits`` are (n, T, C), ``counts`` (n, T). A token's rows touch its own outputs alone.
    """
    n, T, C = logits.shape
    each = softmax_root(logits.reshape(n * T, C)).reshape(n, T, C - 1, C)
    each *= counts[:, :, None, None]
    return each


def symmetric_root(Lambda: Array) -> Array | None:
    """R (n, k, C) with R' R = Lambda, k the largest rank that occurs; None if not convex."""
    values, vectors = np.linalg.eigh(Lambda)  # (n, C) ascending, (n, C, C)
    if values.min() < -1e-10 * max(values.max(), 1e-300):
        return None
    needed = np.any(values > 1e-15 * np.abs(values).max(), axis=0)
    root = np.sqrt(np.maximum(values, 0))[:, :, None] * np.swapaxes(vectors, 1, 2)
    return np.asarray(root[:, needed])


def stack_roots(roots: list[Array]) -> Array:
    """Blocks of roots as one array; a smaller rank is filled up with zeros.

    The list is emptied on the way, because those of sequences are large: all are held once.
    """
    if len(roots) == 1:
        return roots.pop()
    rank = max(root.shape[-2] for root in roots)
    *tokens, _, C = roots[0].shape[1:]
    whole = np.zeros((sum(map(len, roots)), *tokens, rank, C))
    stop = len(whole)
    while roots:
        root = roots.pop()
        start = stop - len(root)
        whole[start:stop, ..., rank - root.shape[-2] :, :] = root
        stop = start
    return whole


def pulled_back(root: Array, J: Array) -> Array:
    """R J (n k, p) of roots (n, k, C), or (n, T, k, C / T) of tokens, and Jacobians (n, C, p)."""
    n, *tokens, _, few = root.shape
    return np.asarray((root @ J.reshape(n, *tokens, few, -1)).reshape(-1, J.shape[-1]))
