"""A literal SGD with momentum in float64: one hidden layer of ReLU, softmax cross-entropy, L2.

Written from the update rule alone, gradients by hand, no vectorised tricks shared with the engine.
"""

import numpy as np


def softmax(logits):
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def gradients(params, x, y):
    """Gradient of the batch's mean cross-entropy."""
    (w1, b1), (w2, b2) = params
    before = x @ w1 + b1
    hidden = np.where(before > 0, before, 0.0)
    error = softmax(hidden @ w2 + b2)
    for row, label in enumerate(y):
        error[row, label] -= 1
    error /= len(y)
    back = (error @ w2.T) * (before > 0)
    return [(x.T @ back, back.sum(axis=0)), (hidden.T @ error, error.sum(axis=0))]


def margin(params, x):
    """How far the hidden units are from the kink of the ReLU, at which rounding has a large say."""
    (w1, b1), _ = params
    return np.abs(x @ w1 + b1).min()


def train(params, x, y, batches, *, learning_rate, momentum, prior_precision, n_classes_in_unit):
    """Params after one update for each row of ``batches``, and the smallest margin on the way.

    The cost is (mean cross-entropy + prior_precision / (2 N) |w|^2) / n_classes_in_unit.
    """
    params = [tuple(np.array(p, np.float64) for p in layer) for layer in params]
    velocity = [tuple(np.zeros_like(p) for p in layer) for layer in params]
    nearest = np.inf
    for batch in batches:
        nearest = min(nearest, margin(params, x[batch].astype(np.float64)))
        grads = gradients(params, x[batch].astype(np.float64), y[batch])
        for k, layer in enumerate(params):
            total = [
                (g + prior_precision / len(y) * w) / n_classes_in_unit
                for g, w in zip(grads[k], layer, strict=True)
            ]
            velocity[k] = tuple(momentum * v + g for v, g in zip(velocity[k], total, strict=True))
            params[k] = tuple(
                w - learning_rate * v for w, v in zip(layer, velocity[k], strict=True)
            )
    return params, nearest


def accuracy_and_cross_entropy(params, x, y):
    (w1, b1), (w2, b2) = params
    p = softmax(np.maximum(x.astype(np.float64) @ w1 + b1, 0) @ w2 + b2)
    return float((p.argmax(axis=1) == y).mean()), float(-np.log(p[np.arange(len(y)), y]).mean())
