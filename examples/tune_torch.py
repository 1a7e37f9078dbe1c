"""Tune a PyTorch module: noisescale tune examples.tune_torch:train --epochs 20."""

import torch

import noisescale as ns
from noisescale.data import load_digits
from noisescale.torch import train_function

N_TRAIN = 1_000

digits = load_digits()
x, y = torch.tensor(digits.x_train), torch.tensor(digits.y_train).long()


def make_module() -> torch.nn.Module:
    """A small convolutional network for images of 8 x 8 pixels."""
    return torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, 8, 8)),
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 10),
    )


train = train_function(make_module, (x[:N_TRAIN], y[:N_TRAIN]), (x[N_TRAIN:], y[N_TRAIN:]))

if __name__ == "__main__":
    print(ns.tune_large_batch(train, train.n_train, epochs=20, progress=True))
