"""The law of the best batch size for the playground's own network and digits.

The paper's constants are of another network, so these were fitted anew: to runs of
:func:`noisescale.train` on the same images, whose accuracies stand in ``calibration.csv``
(``tools/calibrate_playground.py`` makes them, ``tests/paper/test_playground.py`` fits them again).
The power of N comes out as for the paper's network, the other two constants a little smaller.
"""

from noisescale.noise.batch_law import BatchSizeLaw
from noisescale.sweep import RunConfig, make_plan
from noisescale.uncertainty import Estimate

HIDDEN = 64
STEPS = 1_000
SEEDS = 12
_DATA = "noisescale.paper.report.playground.digits:small_digits"

# Effective learning rate, momentum, N, updates, and the size about which to look.
_SETTINGS = (
    (0.5, 0.9, 500, STEPS, 8),
    (1.0, 0.9, 500, STEPS, 13),
    (2.0, 0.9, 500, STEPS, 25),
    (4.0, 0.9, 500, STEPS, 48),
    (0.5, 0.9, 1_000, STEPS, 13),
    (1.0, 0.9, 1_000, STEPS, 16),
    (2.0, 0.9, 1_000, STEPS, 28),
    (4.0, 0.9, 1_000, STEPS, 56),
    (1.0, 0.5, 1_000, STEPS, 16),
    (2.0, 0.5, 1_000, STEPS, 32),
    (2.0, 0.5, 500, STEPS, 30),
    (2.0, 0.9, 250, STEPS, 24),
    (1.0, 0.9, 1_000, STEPS // 2, 26),
)
_AROUND = (0.35, 0.5, 0.71, 1.0, 1.41, 2.0, 2.83, 4.0)


def calibration_plan() -> list[RunConfig]:
    """The runs that the law is fitted to."""
    return [
        run
        for effective, momentum, n_train, steps, about in _SETTINGS
        for run in make_plan(
            {
                "data": _DATA,
                "hidden_widths": (HIDDEN,),
                "learning_rate": round(effective * (1 - momentum), 12),
                "momentum": momentum,
                "n_train": n_train,
                "steps": steps,
                "evaluate_at": "final",
            },
            grid={"batch_size": [max(1, round(about * factor)) for factor in _AROUND]},
            seeds=SEEDS,
        )
    ]


PLAYGROUND_LAW = BatchSizeLaw(
    scale=Estimate(14.64, 0.761, 13.01, 15.87),
    power=Estimate(0.227, 0.077, 0.058, 0.351),
    epochs=Estimate(13.48, 1.36, 10.8, 15.68),
    scatter=0.01,
    typical_error=0.1094,
    n_settings=13,
    covariance=(
        (0.002609, 0.002589, -0.0029),
        (0.002589, 0.005728, -0.002735),
        (-0.0029, -0.002735, 0.01011),
    ),
)
