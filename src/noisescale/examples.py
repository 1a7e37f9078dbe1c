"""Things to try the commands on, before there is anything of one's own.

noisescale evidence noisescale.examples:digits --at map
noisescale tune noisescale.examples:train_digits --epochs 5 --max-runs 60
noisescale sweep --example > plan.toml && noisescale sweep plan.toml
"""

from typing import Any

from noisescale.data import load_digits
from noisescale.training import softmax_regression, train
from noisescale.tune import train_function

_N_TRAIN = 1_000  # the rest of the training images validates

PLAN = """\
# Softmax regression on 8 x 8 digits: 16 runs, some seconds. Any of these may be changed.
seeds = 2

[run]
data = "digits"
hidden_widths = []
steps = 200
n_evaluations = 10

[grid]
learning_rate = [0.2, 1.0]
batch_size = [1, 4, 16, 64]
"""


def digits() -> tuple[Any, Any, tuple[Any, Any]]:
    """A trained softmax regression, its parameters, and 200 images of 8 x 8 pixels."""
    images = load_digits()
    pair = (images.x_train[:200], images.y_train[:200])
    model = softmax_regression(64, 10)
    trained = train(model, model.init(0), pair, learning_rate=0.5, batch_size=32, steps=300)
    return model, trained.params, pair


class _DigitsTraining:
    """One training of softmax regression, scored by its validation accuracy."""

    n_train = _N_TRAIN

    def __call__(
        self, *, batch_size: int, learning_rate: float, momentum: float, steps: int, seed: int
    ) -> float:
        images, model = load_digits(), softmax_regression(64, 10)
        trained = train_function(
            model,
            model.init,
            (images.x_train[:_N_TRAIN], images.y_train[:_N_TRAIN]),
            (images.x_train[_N_TRAIN:], images.y_train[_N_TRAIN:]),
        )
        return trained(
            batch_size=batch_size,
            learning_rate=learning_rate,
            momentum=momentum,
            steps=steps,
            seed=seed,
        )


train_digits = _DigitsTraining()
