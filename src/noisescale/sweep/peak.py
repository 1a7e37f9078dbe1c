"""The best batch size (or learning rate) of an accuracy curve, two ways, with its uncertainty.

The paper's way: the best size observed, with error bars that reach to the neighbouring sizes. Ours:
the top of a cubic in log B around it, with a bootstrap interval over seeds (a cubic, because
accuracy falls faster on the noisy side). That interval covers the seeds' noise alone; ``corrected``
is the same top with the cubic's own bias taken off, and an interval that knows of the grid too. A
peak that the data do not resolve is ``undetermined``.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from noisescale.checks import check_choice, check_whole
from noisescale.errors import InputError
from noisescale.notebook import Displayed
from noisescale.seeds import random_stream
from noisescale.sweep.frames import check_frame, check_numbers, per_example
from noisescale.sweep.peak_error import measure_error
from noisescale.uncertainty import Estimate

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

Array = NDArray[np.float64]
Near = Callable[[Array, int], NDArray[np.bool_]]

_ACCURACIES = ("test_accuracy", "train_accuracy")
_REACH = 3  # sampled sizes on either side of the best that the cubic is fitted to
_SHARE = 0.95  # of the resampled curves that must have an interior peak
_Z = 2.0  # standard errors by which the peak must stand above both ends


@dataclass(frozen=True)
class Peak(Displayed):
    """Where accuracy peaks over batch sizes, or over another quantity.

    Attributes:
        over: the quantity, ``"batch_size"`` unless told otherwise.
        best: the sampled size of highest mean accuracy, and ``best_low``, ``best_high`` its
            sampled neighbours: the paper's estimate with its error bars.
        accuracy, accuracy_std: mean accuracy there, and its standard error over seeds.
        fitted: the top of the cubic; None if undetermined.
        low, high: its 95 % interval; None if undetermined or with a single seed.
        undetermined: why no peak is resolved; None if one is.
        corrected: the top less the bias that the cubic has on these sizes, with an interval from
            the seeds' noise and from where the sizes lie (:mod:`noisescale.sweep.peak_error`). Also
            for a peak that is not resolved, as long as there is a top; its interval is wide then.
        n_seeds: how many seeds this rests on.
        sizes, mean, std: the curve itself, a diverged run counted as chance, and its standard
            errors over seeds.
    """

    over: str
    best: float
    best_low: float
    best_high: float
    accuracy: float
    accuracy_std: float
    fitted: float | None
    low: float | None
    high: float | None
    undetermined: str | None
    n_seeds: int
    sizes: tuple[float, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    corrected: Estimate | None = None

    @property
    def estimate(self) -> Estimate | None:
        """The top of the cubic with its interval; None if undetermined."""
        if self.fitted is None:
            return None
        if self.low is None or self.high is None:
            return Estimate(self.fitted, n=self.n_seeds)
        return Estimate(self.fitted, low=self.low, high=self.high, n=self.n_seeds)

    def plot(self, where: "Axes | str | Path | None" = None) -> "Axes":
        """Draw the curve, and the top with its interval, into ``where``: axes or a file's path."""
        from noisescale.drawing import drawn

        return drawn(self._draw, where)

    def _draw(self, axes: "Axes") -> None:
        from noisescale.drawing import literal

        errors = np.nan_to_num(self.std)
        axes.errorbar(self.sizes, self.mean, yerr=errors, fmt=".-", capsize=2, label="mean of runs")
        if self.fitted is not None:
            axes.axvline(self.fitted, linestyle="--", color="C1", label=f"top, {self.estimate}")
        if self.low is not None and self.high is not None:
            axes.axvspan(self.low, self.high, color="C1", alpha=0.15, linewidth=0)
        over = literal(self.over.replace("_", " "))
        axes.set(xscale="log", xlabel=over, ylabel="mean over seeds")
        axes.legend(fontsize="small")

    def to_dict(self) -> dict[str, Any]:
        """The values by name."""
        corrected = None if self.corrected is None else self.corrected.to_dict()
        return asdict(self) | {"corrected": corrected}

    def __repr__(self) -> str:
        observed = (
            f"best observed {self.over} {self.best:g} (neighbours {self.best_low:g} and "
            f"{self.best_high:g}), "
            f"accuracy {self.accuracy:.4f} ± {self.accuracy_std:.4f}"
        )
        if self.undetermined is not None:
            return f"Peak: undetermined ({self.undetermined}); {observed}"
        corrected = "" if self.corrected is None else f", corrected {self.corrected}"
        return f"Peak: {self.over} {self.estimate}{corrected}; {observed}; {self.n_seeds} seeds"


def find_peak(
    frame: pd.DataFrame,
    *,
    over: str = "batch_size",
    metric: str = "test_accuracy",
    n_resamples: int = 2_000,
) -> Peak:
    """The peak of ``metric`` over ``over`` in a frame of runs that else differ in seed alone.

    ``metric`` is ``"test_accuracy"``, ``"train_accuracy"``, or ``"score"`` for any number of which
    more is better. Seeds are resampled as wholes, because a seed's runs share their training
    images. A diverged run counts as chance in the means (as the worst score seen, if chance is not
    known) and never enters a fit. A failed run is left out. Over ``"learning_rate"``, those of
    ``cost_convention="per_class"`` are divided by the number of classes.
    """
    check_choice("metric", metric, (*_ACCURACIES, "score"))
    if not isinstance(over, str) or over in ("seed", "status", metric):
        raise InputError(f"over must name the quantity that varies, got {over!r}.")
    n_resamples = check_whole("n_resamples", n_resamples, at_least=1)
    near = _near_accuracy if metric in _ACCURACIES else _near_score
    table, trained = _table(frame, over, metric)
    sizes, values = table.columns.to_numpy(float), table.to_numpy(float)
    n_seeds, mean = len(values), values.mean(axis=0)
    error = _standard_error(values)
    k = int(np.argmax(mean))
    reason = _unresolved(values, trained, k, near)
    fitted, low, high = None, None, None
    if reason is None:
        fitted, low, high, reason = _fit(np.log(sizes), values, trained, near, n_resamples)
    return Peak(
        over=over,
        best=_plain(sizes[k]),
        best_low=_plain(sizes[max(k - 1, 0)]),
        best_high=_plain(sizes[min(k + 1, len(sizes) - 1)]),
        accuracy=float(mean[k]),
        accuracy_std=float(error[k]),
        fitted=fitted,
        low=low,
        high=high,
        undetermined=reason,
        n_seeds=n_seeds,
        sizes=tuple(_plain(size) for size in sizes),
        mean=tuple(float(value) for value in mean),
        std=tuple(float(value) for value in error),
        corrected=_corrected(np.log(sizes), values, trained, near),
    )


def _corrected(
    log_sizes: Array, values: Array, trained: NDArray[np.bool_], near: Near
) -> Estimate | None:
    """The top less the cubic's bias on these sizes, with the grid's scatter in its interval."""
    mean = values.mean(axis=0)
    top = _top(log_sizes, mean, trained, near)
    if top is None:
        return None
    alike = near(mean, int(np.argmax(mean))) & trained
    error = measure_error(
        log_sizes, values, alike, lambda curve: _top(log_sizes, curve, trained, near)
    )
    if error is None:
        return None
    middle = top - error.bias
    value, low, high = np.exp([middle, middle - error.reach, middle + error.reach]).tolist()
    return Estimate(value, value * error.std, low, high, len(values))


def _table(frame: pd.DataFrame, over: str, metric: str) -> tuple[pd.DataFrame, NDArray[np.bool_]]:
    """Seeds by batch sizes, chance where a run diverged; and which sizes never diverged."""
    runs = check_frame(frame, (over, "seed", metric))
    if runs.empty:
        raise InputError("the frame holds no finished runs.")
    if over == "learning_rate":
        runs = per_example(runs)
    diverged = runs["status"] == "diverged"
    scores = reached_by(runs, metric)
    runs = pd.DataFrame(
        {
            # Far beyond what anybody tries; logarithms and their errors stay finite.
            over: check_numbers(runs, over, "from 1e-12 to 1e12", lambda v: 1e-12 <= v <= 1e12),
            "seed": check_numbers(runs, "seed", "", lambda v: True),
            metric: scores,
        }
    )
    if runs.duplicated(["seed", over]).any():
        raise InputError(
            f"the frame has several runs of one seed and {over}: choose runs that differ in "
            "nothing else."
        )
    table = runs.pivot(index="seed", columns=over, values=metric)
    # Seeds are compared with themselves, so a size must have all of them.
    table = table.loc[:, table.notna().all()]
    if table.empty:
        raise InputError(f"no {over} was run with every seed: they cannot be compared.")
    by_size = runs.assign(diverged=diverged).groupby(over)["diverged"].any()
    return table, ~by_size.loc[table.columns].to_numpy(bool)


def reached_by(runs: pd.DataFrame, metric: str) -> "pd.Series[float]":
    """What each run reached: chance where it diverged, or the worst score if that is not known."""
    diverged = runs["status"] == "diverged"
    good = runs[~diverged]
    if metric in _ACCURACIES:
        reached = check_numbers(good, metric, "from 0 to 1", lambda v: 0 <= v <= 1)
        chance: Any = 0.0  # of nobody, unless some run diverged
        if diverged.any():
            check_frame(runs, ("n_classes",))
            bad = runs[diverged]
            chance = 1 / check_numbers(bad, "n_classes", "from 1 on", lambda v: v >= 1)
    else:
        reached = check_numbers(good, metric, "below 1e100 in size", lambda v: abs(v) < 1e100)
        if good.empty:
            raise InputError("every run diverged: there is no score to find a peak of.")
        chance = reached.min()
    scores = reached.reindex(runs.index)
    scores[diverged] = chance
    return scores


def _plain(size: float) -> float:
    """A whole number as one: batch sizes are."""
    return int(size) if float(size).is_integer() else float(size)


def _standard_error(values: Array) -> Array:
    if len(values) < 2:
        return np.full(values.shape[1], math.nan)
    return np.asarray(values.std(axis=0, ddof=1) / math.sqrt(len(values)))


def _unresolved(values: Array, trained: NDArray[np.bool_], k: int, near: Near) -> str | None:
    """Why the best observed size is no peak that stands out; None if it does."""
    n_seeds, n_sizes = values.shape
    if k in (0, n_sizes - 1):
        return f"the best size is the {'smallest' if k == 0 else 'largest'} that was tried"
    if not trained[k - 1 : k + 2].any() or n_sizes < 4:
        return "there are too few sizes that train"
    if n_seeds < 2:
        return None
    # Differences from the best, paired by seed, their spread pooled over the sizes that train about
    # as well: with a few seeds a size's own spread is hardly known, and where training breaks down
    # it is much larger than near the top.
    alike = near(values.mean(axis=0), k) & trained
    alike[k] = False
    differences = values[:, [k]] - values
    spread = 0.0
    if alike.any():
        spread = math.sqrt(float(differences[:, alike].var(axis=0, ddof=1).mean()))
    for end, name in ((0, "smallest"), (n_sizes - 1, "largest")):
        if (values[:, k] - values[:, end]).mean() <= _Z * spread / math.sqrt(n_seeds):
            return f"the best size is not {_Z:g} standard errors better than the {name}"
    return None


def _fit(
    log_sizes: Array, values: Array, trained: NDArray[np.bool_], near: Near, n_resamples: int
) -> tuple[float | None, float | None, float | None, str | None]:
    """The top and its 95 % interval, or the reason why there are none."""
    mean = values.mean(axis=0)
    centre = _top(log_sizes, mean, trained, near)
    if centre is None:
        return None, None, None, "no curve with its top inside fits the sizes around the best"
    n_seeds = len(values)
    if n_seeds < 2:
        return math.exp(centre), None, None, None
    rng = random_stream(0, "peak bootstrap")
    # A resampled mean spreads by (n - 1)/n too little; stretch it.
    stretch = math.sqrt(n_seeds / (n_seeds - 1))
    draws = rng.multinomial(n_seeds, [1 / n_seeds] * n_seeds, size=n_resamples)
    # A few seeds have few distinct resamples (ten of three, 126 of five): each is fitted once.
    distinct, which = np.unique(draws, axis=0, return_inverse=True)
    curves = mean + stretch * (distinct / n_seeds @ values - mean)
    tops = [_top(log_sizes, curve, trained, near) for curve in curves]
    found = [top for k in which.ravel() if (top := tops[k]) is not None]
    if len(found) < _SHARE * n_resamples:
        share = len(found) / n_resamples
        return None, None, None, f"only {share:.0%} of the resampled curves have a peak inside"
    # The spread itself is known from a few seeds only: Student's t in place of the normal.
    student = float(stats.t.ppf(0.975, n_seeds - 1) / stats.norm.ppf(0.975))
    low, high = np.exp(centre + student * (np.quantile(found, [0.025, 0.975]) - centre))
    return math.exp(centre), float(low), float(high), None


def _top(log_sizes: Array, mean: Array, trained: NDArray[np.bool_], near: Near) -> float | None:
    """Where the cubic through the sizes around the best is highest; None if not inside them."""
    k = int(np.argmax(mean))
    if k in (0, len(mean) - 1):
        return None
    around = np.arange(max(0, k - _REACH), min(len(mean), k + _REACH + 1))
    around = around[(trained & near(mean, k))[around]]
    if len(around) < 3:
        return None
    coefficients = _least_squares(tuple(log_sizes[around].tolist())) @ mean[around]
    # f' = a u^2 + b u + c, and of its roots the one with f'' = -sqrt(b^2 - 4 a c); written so that
    # a vanishing a does no harm.
    c, b, a = (coefficients[1], 2 * coefficients[2], 3 * coefficients[3])
    root = b * b - 4 * a * c
    if root <= 0 or (b >= 0 and a == 0):
        return None
    u = 2 * c / (math.sqrt(root) - b) if b < 0 else -(b + math.sqrt(root)) / (2 * a)
    return float(np.interp(u, [-1, 1], log_sizes[around[[0, -1]]])) if abs(u) <= 1 else None


@lru_cache(maxsize=1024)  # thousands of resampled curves share a few sets of sizes
def _least_squares(log_sizes: tuple[float, ...]) -> Array:
    """(4, n): takes values at these sizes to the coefficients of their cubic in u.

    u goes from -1 to 1 over the sizes. Three sizes have a parabola, whose last coefficient is 0.
    """
    x = np.array(log_sizes)
    u = 2 * (x - x[0]) / (x[-1] - x[0]) - 1
    degree = 3 if len(x) >= 4 else 2
    solver = np.zeros((4, len(x)))
    solver[: degree + 1] = np.linalg.pinv(np.vander(u, degree + 1, increasing=True))
    return solver


# The sizes that train about as well as the best one, ``k``, and its neighbours: where training
# breaks down, the curve falls off a cliff that says nothing of its top.
def _near_accuracy(mean: Array, k: int) -> NDArray[np.bool_]:
    near = 1 - mean <= 2 * (1 - mean[k])
    near[k - 1 : k + 2] = True
    return np.asarray(near)


def _near_score(mean: Array, k: int) -> NDArray[np.bool_]:
    """Without a ceiling to measure by: what falls no faster than a parabola's next step."""
    fall = mean[k] - mean
    near = fall <= 4 * max(fall[k - 1], fall[k + 1])
    near[k - 1 : k + 2] = True
    return np.asarray(near)
