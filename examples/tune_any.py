"""Tune a function of your own: noisescale tune examples.tune_any:train --n-train 1000 --epochs 20.

Whatever trains your model will do, in any framework: it takes these five keywords and returns a
validation score, higher is better, NaN if training diverged.
"""

import numpy as np

import noisescale as ns
from noisescale.data import load_digits

N_TRAIN = 1_000


def train(
    *, batch_size: int, learning_rate: float, momentum: float, steps: int, seed: int
) -> float:
    """Softmax regression in NumPy; returns the accuracy on images that it was not trained on."""
    digits = load_digits()
    x, y = digits.x_train, digits.y_train
    rng = np.random.default_rng(seed)
    w, velocity = np.zeros((64, 10)), np.zeros((64, 10))
    for _ in range(steps):
        batch = rng.choice(N_TRAIN, batch_size, replace=False)
        logits = x[batch] @ w
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(batch_size), y[batch]] -= 1
        velocity = momentum * velocity + x[batch].T @ p / batch_size
        w -= learning_rate * velocity
    return float(np.mean((x[N_TRAIN:] @ w).argmax(axis=1) == y[N_TRAIN:]))


if __name__ == "__main__":
    print(ns.tune_large_batch(train, N_TRAIN, epochs=20, progress=True))
