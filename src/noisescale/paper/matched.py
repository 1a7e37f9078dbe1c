"""Settings of SGD with equal and with unequal noise scales, and what their fluctuations say.

On a quadratic of curvature h the stationary variance along a direction is, with F the variance of
per-example gradients there,

    Var(w) = epsilon F (1/B - 1/N) (1 + m)/(h (1 - m)(2 (1 + m) - epsilon h))
           = g F/(2 N h) / (1 - epsilon h/(2 (1 + m))),

so that 2 N h Var(w)/F, the noise scale that the fluctuations show, is g once epsilon h is small.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from noisescale.noise.scale import noise_scale
from noisescale.paper.runs import Array
from noisescale.uncertainty import Estimate, mean_of

MATCHED, DOUBLED, COARSE = "equal g", "twice g", "large step"
ALIKE = (0.9, 1.1)  # ratios of fluctuations that count as 1


@dataclass(frozen=True)
class Setting:
    """A recipe of SGD, and which comparison it belongs to."""

    learning_rate: float
    batch_size: int
    n_train: int
    momentum: float
    kind: str

    @property
    def noise_scale(self) -> float:
        """The paper's g, exact."""
        return noise_scale(self.learning_rate, self.batch_size, self.n_train, self.momentum)

    def shown_noise_scale(self, curvature: Array | float) -> Array:
        """What 2 N h Var(w)/F is in closed form."""
        used = self.learning_rate * np.asarray(curvature) / (2 * (1 + self.momentum))
        return np.asarray(self.noise_scale / (1 - used))

    def small_step(self, curvature: float) -> bool:
        """Whether epsilon h/(1 + m) <= .02, where matched settings should agree."""
        return self.learning_rate * curvature / (1 + self.momentum) <= 0.02

    def __str__(self) -> str:
        return (
            f"ε = {self.learning_rate:.3g}, B = {self.batch_size}, N = {self.n_train:,}, "
            f"m = {self.momentum:g}"
        )


def with_noise_scale(
    g: float, batch_size: int, n_train: int, momentum: float, kind: str = MATCHED
) -> Setting:
    """The setting whose learning rate gives this noise scale exactly."""
    rate = g * (1 - momentum) / (n_train / batch_size - 1)
    return Setting(rate, batch_size, n_train, momentum, kind)


def agree(shown: dict[Setting, Estimate], curvature: float) -> bool | None:
    """Whether matched settings agree pairwise within 3 SE + 1 %; None if there is no pair."""
    matched = [
        value
        for setting, value in shown.items()
        if setting.kind == MATCHED and setting.small_step(curvature)
    ]
    pairs = [(a, b) for i, a in enumerate(matched) for b in matched[:i]]
    return all(_excess(a, b) <= 0 for a, b in pairs) if pairs else None


def paired_ratios(
    by_seed: Sequence[dict[Setting, Array]], kind: str = MATCHED
) -> dict[tuple[Setting, Setting], Estimate]:
    """Of the noise scales that pairs of settings show, in each seed: matched ones with one another.

    With another ``kind``, its settings over the matched ones of equal batch size and momentum.
    """
    means = [{s: float(np.mean(blocks)) for s, blocks in shown.items()} for shown in by_seed]
    matched = [s for s in means[0] if s.kind == MATCHED]
    if kind == MATCHED:
        pairs = [(a, b) for i, a in enumerate(matched) for b in matched[:i]]
    else:
        pairs = [
            (a, b)
            for a in means[0]
            for b in matched
            if a.kind == kind and (a.batch_size, a.momentum) == (b.batch_size, b.momentum)
        ]
    return {(a, b): mean_of([one[a] / one[b] for one in means]) for a, b in pairs}


def differ(shown: dict[Setting, Estimate], curvature: float) -> bool | None:
    """Whether settings of twice the noise scale do not agree with matched ones; None as above."""
    matched, doubled = (
        [
            value
            for setting, value in shown.items()
            if setting.kind == kind and setting.small_step(curvature)
        ]
        for kind in (MATCHED, DOUBLED)
    )
    pairs = [(a, b) for a in matched for b in doubled]
    return all(_excess(a, b) > 0 for a, b in pairs) if pairs else None


def _excess(a: Estimate, b: Estimate) -> float:
    """How much more they differ than 3 SE + 1 %."""
    allowed = 3 * math.hypot(a.std, b.std) + 0.01 * max(a.value, b.value)
    return abs(a.value - b.value) - allowed
