"""Tune a scikit-learn network: noisescale tune examples.tune_sklearn:train --epochs 20."""

from sklearn.neural_network import MLPClassifier

import noisescale as ns
from noisescale.data import load_digits
from noisescale.sklearn import train_function

N_TRAIN = 1_000

digits = load_digits()
train = train_function(
    MLPClassifier((64,), solver="sgd", nesterovs_momentum=False, alpha=0.0),
    (digits.x_train[:N_TRAIN], digits.y_train[:N_TRAIN]),
    (digits.x_train[N_TRAIN:], digits.y_train[N_TRAIN:]),
)

if __name__ == "__main__":
    print(ns.tune_large_batch(train, train.n_train, epochs=20, progress=True))
