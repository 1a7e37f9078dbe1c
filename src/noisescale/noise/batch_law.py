"""The best batch size by two branches: what the noise allows, and what the updates can fit.

With the effective learning rate e = epsilon/(1 - m), N examples and T updates,

    B_opt^q = [a e (N/1000)^alpha]^q + [c N/T]^q.

The first branch is the noise scale's, with a weak power of N in place of the paper's 1; the second
is an epoch budget: within T updates a batch of B sees T B/N epochs, and below about c of them the
network has not fitted its data, however quiet its gradient. q says how sharply one takes over from
the other. For a length in epochs E, T = E N/B, and the batch that is best for the updates it leaves
is a e (N/1000)^alpha (1 - (c/E)^q)^(-1/q), where E > c.

Learning rates are those of a cost averaged over examples. Nothing here needs JAX.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from noisescale.checks import check_learning_rate, check_momentum, check_number, check_whole, shown
from noisescale.errors import InputError
from noisescale.notebook import Displayed
from noisescale.uncertainty import Estimate

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

Constants = tuple[float, float, float]  # a, alpha, c
Covariance = tuple[Constants, Constants, Constants]

SHARPNESS = 4.0  # q: from 2 to 8 the shipped runs are fitted alike
REFERENCE_N = 1_000
_UNKNOWN: Covariance = ((0.0,) * 3, (0.0,) * 3, (0.0,) * 3)
_STEP = 1e-4  # of the numerical derivatives by the constants
_TAIL = 0.025  # of either end of an interval
_SLICES = 400  # of the distribution of ln c, of equal probability


@dataclass(frozen=True)
class BestBatch(Displayed):
    """A best batch size that the law predicts.

    Attributes:
        value, low, high: B_opt, and the 95 % interval for its measurement; ``high`` is infinite
            where too few epochs for any batch size are among what is likely.
        branch: ``"noise"`` or ``"epochs"``, whichever is larger.
        noise, epochs: what each branch gives alone.
        notes: what stands against it.
        has_answer: False where the law has no best batch size; ``value`` is then the noise's.

    >>> import noisescale as ns
    >>> best = ns.PAPER_LAW.predict(learning_rate=0.1, n_train=1_000, momentum=0.9, steps=10_000)
    >>> best.branch, round(best.value)
    ('noise', 22)
    """

    value: float
    low: float
    high: float
    branch: str
    noise: float
    epochs: float
    notes: tuple[str, ...] = ()
    has_answer: bool = True

    def to_dict(self) -> dict[str, Any]:
        """The values by name; None for what is infinite."""
        return {name: None if value == math.inf else value for name, value in vars(self).items()}

    def _headline(self) -> str:
        return f"Best batch size {self}"

    @property
    def summary(self) -> str:
        """The value, its interval and what binds it, without the notes."""
        high = f"{self.high:.3g}" if math.isfinite(self.high) else "no upper end"
        bound = f"bound by {self.branch}" if self.has_answer else "by the noise alone"
        return f"{self.value:.3g} [{self.low:.3g}, {high}], {bound}"

    def __str__(self) -> str:
        return "; ".join((self.summary, *self.notes))


@dataclass(frozen=True)
class BatchSizeLaw(Displayed):
    """The two-branch law with its constants.

    Attributes:
        scale: a, the best batch size at an effective learning rate of 1 and 1,000 examples.
        power: alpha, the power of N in the noise branch.
        epochs: c, how many epochs the network needs.
        sharpness: q.
        scatter: standard deviation of ln B_opt about the law, beyond the peaks' own errors.
        typical_error: a typical standard error of one measured ln B_opt.
        n_settings: how many peaks it was fitted to.
        notes: which constants the runs did not determine.
        covariance: of ln a, alpha and ln c, three rows.

    >>> print(PAPER_LAW.predict(learning_rate=0.1, momentum=0.9, n_train=60_000, steps=10_000))
    96.5 [69.8, 133], bound by epochs
    """

    scale: Estimate
    power: Estimate
    epochs: Estimate
    sharpness: float = SHARPNESS
    scatter: float = math.nan
    typical_error: float = math.nan
    n_settings: int = 0
    notes: tuple[str, ...] = ()
    covariance: Covariance = field(default=_UNKNOWN, repr=False)

    def predict(
        self,
        *,
        learning_rate: float,
        n_train: int,
        momentum: float = 0.0,
        steps: int | None = None,
        epochs: float | None = None,
    ) -> BestBatch:
        """The best batch size for a run of so many updates, or of so many epochs."""
        effective = check_learning_rate(learning_rate) / (1 - check_momentum(momentum))
        n_train = check_whole("n_train", n_train, at_least=1)
        if (steps is None) == (epochs is None):
            raise InputError(
                "how long the run is decides its best batch size: give steps or epochs, and not "
                "both."
            )
        if steps is not None:
            steps = check_whole("steps", steps, at_least=1)
        else:
            epochs = check_number("epochs", epochs, "above 0", lambda v: v > 0)
        constants = (self.scale.value, self.power.value, self.epochs.value)
        noise, budget = self._branches(constants, effective, n_train, steps, epochs)
        value = self._joined(noise, budget)
        notes: list[str] = []
        if not (has_answer := math.isfinite(value)):  # too few epochs for any batch size
            value, budget = noise, math.inf
            notes.append(
                f"{epochs:g} epochs are fewer than the {self.epochs.value:.3g} that the law needs "
                "to fit: it has no best batch size for them, and this is the noise branch alone"
            )
        if epochs is None or not has_answer:
            low, high = self._interval(value, effective, n_train, steps, epochs)
        else:
            low, high = self._interval_of_epochs(effective, n_train, epochs)
        if not math.isfinite(high):
            notes.append(
                f"that {epochs:g} epochs are too few for any batch size is within the law's errors "
                f"(it needs {self.epochs} epochs), so there is no upper end"
            )
        if value > n_train:
            notes.append(f"more than all {n_train:,} examples: the whole set is the largest batch")
        if value < 1:
            notes.append(
                "less than one example: no batch is small enough, take a larger learning rate"
            )
        notes += [f"of the law: {note}" for note in self.notes]
        branch = "noise" if noise >= budget or not has_answer else "epochs"
        return BestBatch(value, low, high, branch, noise, budget, tuple(notes), has_answer)

    def ratio(self, before: dict[str, Any], after: dict[str, Any]) -> float:
        """B_opt after a change over B_opt before it; each a mapping of :meth:`predict`'s arguments.

        What is most likely to carry over to another network and other data.
        """
        for name, asked in (("before", before), ("after", after)):
            known = {"learning_rate", "n_train", "momentum", "steps", "epochs"}
            needed = {"learning_rate", "n_train"}
            if not (isinstance(asked, Mapping) and needed <= set(asked) <= known):
                raise InputError(
                    f"{name} must be a mapping such as {{'learning_rate': 0.1, 'n_train': 1000, "
                    f"'steps': 10000}}, got {shown(asked)}."
                )
        return self.predict(**after).value / self.predict(**before).value

    def plot(self, where: "Axes | str | Path | None" = None, *, steps: int = 10_000) -> "Axes":
        """B_opt against N at several effective learning rates, for runs of ``steps`` updates.

        ``where``: axes or a file's path.
        """
        from noisescale.drawing import drawn
        from noisescale.noise.law_drawing import draw_law

        return drawn(lambda axes: draw_law(self, axes, steps=steps), where)

    def to_dict(self) -> dict[str, Any]:
        """The constants by name."""
        return {
            name: value.to_dict() if isinstance(value, Estimate) else value
            for name, value in vars(self).items()
        }

    def __repr__(self) -> str:
        q = self.sharpness
        lines = [
            f"BatchSizeLaw from {self.n_settings} best batch sizes",
            f"  B_opt^{q:g} = [a e (N/1000)^alpha]^{q:g} + [c N/T]^{q:g}, e = epsilon/(1 - m)",
            f"  a = {self.scale}, alpha = {self.power}, c = {self.epochs} epochs",
            f"  scatter of ln B_opt beyond the peaks' errors {self.scatter:.2g}",
        ]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])

    def _branches(
        self,
        constants: Constants,
        effective: float,
        n_train: int,
        steps: int | None,
        epochs: float | None,
    ) -> tuple[float, float]:
        scale, power, budget = constants
        noise = scale * effective * (n_train / REFERENCE_N) ** power
        if steps is not None:
            return noise, budget * n_train / steps
        assert epochs is not None
        if epochs <= budget:
            return noise, math.inf
        whole = noise * (1 - (budget / epochs) ** self.sharpness) ** (-1 / self.sharpness)
        return noise, whole * budget / epochs  # c N/T with T = E N/B

    def _joined(self, noise: float, budget: float) -> float:
        top = max(noise, budget)
        if not math.isfinite(top):
            return math.inf
        parts = sum((part / top) ** self.sharpness for part in (noise, budget))
        return float(top * parts ** (1 / self.sharpness))

    def _interval(
        self, value: float, effective: float, n_train: int, steps: int | None, epochs: float | None
    ) -> tuple[float, float]:
        """For a measurement: the constants' errors, the law's scatter, and a peak's own error."""
        a, alpha, c = self.scale.value, self.power.value, self.epochs.value
        moved = (
            (a * math.exp(_STEP), alpha, c),
            (a, alpha + _STEP, c),
            (a, alpha, c * math.exp(_STEP)),
        )
        at = (effective, n_train, steps, epochs)
        sizes = [self._joined(*self._branches(constants, *at)) for constants in moved]
        slopes = [math.log(b / value) / _STEP if math.isfinite(b) else 0.0 for b in sizes]
        variance = self._own_variance + sum(
            slopes[i] * slopes[j] * self.covariance[i][j] for i in range(3) for j in range(3)
        )
        reach = math.exp(1.96 * math.sqrt(max(variance, 0.0)))
        return value / reach, value * reach

    def _interval_of_epochs(
        self, effective: float, n_train: int, epochs: float
    ) -> tuple[float, float]:
        """The same for a length in epochs, where B_opt has a pole at c: slice by slice of ln c.

        ln B = ln a + alpha ln(N/1000) + ... - ln(1 - (c/E)^q)/q is normal given c, and infinite
        from c = E on; its quantiles are those of the mixture.
        """
        C, x = self.covariance, math.log(n_train / REFERENCE_N)
        spread = math.sqrt(max(C[2][2], 0.0))
        with_c = C[0][2] + x * C[1][2]  # covariance of ln a + alpha x with ln c
        slope = with_c / C[2][2] if C[2][2] > 0 else 0.0
        variance = C[0][0] + 2 * x * C[0][1] + x * x * C[1][1] - slope * with_c
        normal = NormalDist(0.0, math.sqrt(max(variance, 0.0) + self._own_variance + 1e-12))
        noise = math.log(self.scale.value * effective) + self.power.value * x
        means = []
        for k in range(_SLICES):
            away = spread * NormalDist().inv_cdf((k + 0.5) / _SLICES)
            share = self.epochs.value * math.exp(away) / epochs  # c/E
            if share < 1:
                joined = -math.log1p(-(share**self.sharpness)) / self.sharpness
                means.append(noise + slope * away + joined)

        def below(at: float) -> float:
            return sum(normal.cdf(at - mean) for mean in means) / _SLICES

        def quantile(probability: float) -> float:
            low, high = min(means) - 10 * normal.stdev, max(means) + 10 * normal.stdev
            if below(high) < probability:
                return math.inf
            for _ in range(60):
                middle = (low + high) / 2
                low, high = (middle, high) if below(middle) < probability else (low, middle)
            return math.exp(high)

        return quantile(_TAIL), quantile(1 - _TAIL)

    @property
    def _own_variance(self) -> float:
        """Of a measured ln B_opt about the law: its scatter, and a peak's own error."""
        both = (self.scatter, self.typical_error)
        return sum(part * part for part in both if math.isfinite(part))


# The law of the paper's network on MNIST: fitted to the shipped runs of figures 5, 6 and 7 (10,000
# updates, or 10,000/epsilon), before it predicted anything. tests/sweep/test_batch_law.py fits it
# again.
PAPER_LAW = BatchSizeLaw(
    scale=Estimate(21.75, 0.611, 21.05, 23.43),
    power=Estimate(0.227, 0.0296, 0.167, 0.2739),
    epochs=Estimate(15.63, 2.05, 11.17, 18.25),
    scatter=0.0398,
    typical_error=0.1259,
    n_settings=21,
    covariance=(
        (0.0007045, -0.0003471, 0.0005524),
        (-0.0003471, 0.0008173, -0.002224),
        (0.0005524, -0.002224, 0.01415),
    ),
)
