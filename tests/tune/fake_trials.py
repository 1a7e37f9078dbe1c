"""Trials without training: a score for each recipe and seed, and the tuner on them."""

import numpy as np
import pandas as pd

import noisescale as ns
from noisescale.jobs.progress import Progress
from noisescale.tune.margin import Tuner
from noisescale.tune.procedure import Plan
from noisescale.tune.scores import Budget

N_TRAIN = 10_000


class FakeTrials:
    """``score(recipe)`` and noise of standard deviation ``spread``, another for each ``draw``.

    ``broken(recipe, seed)`` says which runs give no score.
    """

    seconds = 0.0
    held_back = Budget(0, 0)

    def __init__(self, score, spread=0.0, draw=0, broken=lambda recipe, seed: False):
        self.score, self.spread, self.broken = score, spread, broken
        self.rng, self.made = np.random.default_rng(draw), {}

    def scores(self, recipes, n_seeds, skip=0):
        return np.array([[self._one(r, s) for s in range(skip, skip + n_seeds)] for r in recipes])

    def _one(self, recipe, seed):
        momentum = getattr(recipe, "momentum", None)
        key = recipe.batch_size, recipe.learning_rate, momentum, seed
        if key not in self.made:
            noise = self.spread * self.rng.normal()
            broken = self.broken(recipe, seed)
            self.made[key] = np.nan if broken else self.score(recipe) + noise
        return self.made[key]

    def steps(self, batch_size):
        return round(10 * N_TRAIN / batch_size)

    @property
    def n_runs(self):
        return len(self.made)

    @property
    def n_steps(self):
        return sum(self.steps(size) for size, *_ in self.made)

    def timings(self):
        sizes = [size for size, *_ in self.made]
        return pd.DataFrame({"batch_size": sizes, "steps": 10, "duration": 1.0})


def tune(trials, *, tolerance=0.002, first=None, **options):
    """The tuner's result on fake trials."""
    plan = Plan(
        first=first or ns.Recipe(learning_rate=0.1, momentum=0.9, batch_size=1, n_train=N_TRAIN),
        **{"n_train": N_TRAIN, "epochs": 10, "sizes": (8, 32, 128, 512), "limit": N_TRAIN}
        | {"seeds": 3, "max_seeds": 9, "tolerance": tolerance}
        | options,
    )
    return Tuner(plan, trials, Progress(), []).run()
