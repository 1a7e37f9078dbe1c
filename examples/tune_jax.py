"""Tune a JAX model: noisescale tune examples.tune_jax:train --epochs 20 (from the repository)."""

import noisescale as ns
from noisescale.data import load_digits
from noisescale.tune import train_function

N_TRAIN = 1_000

digits = load_digits()
network = ns.DenseNetwork((64, 64, 10))  # any apply_fn(params, x) and init(seed) will do
train = train_function(
    network,
    network.init,
    (digits.x_train[:N_TRAIN], digits.y_train[:N_TRAIN]),
    (digits.x_train[N_TRAIN:], digits.y_train[N_TRAIN:]),  # the test images stay untouched
)

if __name__ == "__main__":
    print(ns.tune_large_batch(train, train.n_train, epochs=20, progress=True))
