"""Figure 3: a small and a full batch, test accuracy and cross-entropy during training."""

import math
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from noisescale.drawing import house_style, to_svg
from noisescale.paper.batches import (
    CONVENTION,
    N_TRAIN,
    SMALL,
    linear_plan,
    plain_plan,
    size_of,
)
from noisescale.paper.claims import Judgement, conclude
from noisescale.paper.runs import Array, Runs, short, updates_to
from noisescale.paper.section import Context, Findings, Measured, Measurement, Picture, Section
from noisescale.paper.statistics import above, inside
from noisescale.paper.style import draw_training
from noisescale.uncertainty import Estimate, mean_of

_A_THOUSAND = (500.0, 2_000.0)  # updates: about a thousand
_NONE = 0.005  # of accuracy, that C34 counts as no gap


@dataclass(frozen=True)
class Data(Measured):
    """The small and the large batch, of the network and of a linear model."""

    network: Runs
    linear: Runs


def measure(context: Context) -> Data:
    """Train both at both batch sizes."""
    large = size_of(context.at).large
    return Data(
        at=context.at,
        network=context.runs(plain_plan(context, (SMALL, large))),
        linear=context.runs(linear_plan(context)),
    )


def judge(data: Data) -> Findings:
    """C13, C14, C15 and, for a linear model, C34."""
    large, steps = size_of(data.at).large, size_of(data.at).steps
    gap, linear_gap = (mean_of(_gap(runs, large)) for runs in (data.network, data.linear))
    how = f"{data.at.seeds} seeds, paired, N = {N_TRAIN:,}, {steps:,} updates"
    return Findings(
        statement=(
            f"The network is trained on {N_TRAIN:,} images with batches of {SMALL} and of {large}, "
            "nothing else different. The paper finds that the small batch converges later but "
            "generalises better, with a gap in test accuracy after about a thousand updates, and "
            "that the test cross-entropy of both passes a minimum and rises again. It also "
            "mentions that a linear model shows no such gap."
        ),
        measurements=(
            Measurement(f"test accuracy at B = {SMALL} minus B = {large}", str(gap), how),
            Measurement("the same for softmax regression", str(linear_gap), how),
        ),
        judgements=(*_judge(data, large), _judge_linear(data, linear_gap)),
        readings=(_judge_opening(data, large),),
    )


def _gap(runs: Runs, large: int) -> Array:
    small_batch, large_batch = (runs.final("test_accuracy", batch_size=B) for B in (SMALL, large))
    return np.asarray(small_batch - large_batch)


def times_to_converge(runs: Runs, batch_size: int, share: float = 0.95) -> Array:
    """Updates to a share of the final test accuracy, by seed."""
    steps, curves = runs.curve("test_accuracy", batch_size=batch_size)
    return np.array([updates_to(steps, curve, share) for curve in curves])


def _gaps(runs: Runs, large: int) -> tuple[Array, Array]:
    """The steps, and the gap in test accuracy at each: a row a seed."""
    steps, small_curve = runs.curve("test_accuracy", batch_size=SMALL)
    return steps, small_curve - runs.curve("test_accuracy", batch_size=large)[1]


def _judge(data: Data, large: int) -> list[Judgement]:
    runs = data.network
    times = {B: times_to_converge(runs, B) for B in (SMALL, large)}
    later = mean_of(times[SMALL] - times[large])
    steps, by_seed = _gaps(runs, large)
    gaps = [(step, mean_of(column)) for step, column in zip(steps, by_seed.T, strict=True)]
    early = [gap for step, gap in gaps if 0 < step < 300]
    closed = bool(early) and not any(gap.above(0, by=2) for gap in early)
    late = [gap for step, gap in gaps if step >= 3_000]
    small_ce, large_ce = (runs.curve("test_cross_entropy", batch_size=B)[1] for B in (SMALL, large))
    lower = mean_of(large_ce[:, -1] - small_ce[:, -1])
    interior = [_interior_minimum(curves.mean(axis=0)) for curves in (small_ce, large_ce)]
    most_early = max((_in_errors(gap) for gap in early), default=np.nan)
    least_late = min((_in_errors(gap) for gap in late), default=np.nan)
    return [
        conclude(
            "C13",
            [later.above(0, by=2)],
            decidable=data.at.decidable,
            measured={f"updates at B = {B}": short(t.mean()) for B, t in times.items()},
            uncertainty={"difference": str(later)},
            convention=CONVENTION,
        ),
        conclude(
            "C14",
            [
                closed,
                _all([gap.above(0, by=3) for gap in late]),
            ],
            decidable=data.at.decidable,
            measured={"final gap": short(gaps[-1][1].value)},
            uncertainty={
                "final gap": short(gaps[-1][1].std),
                "upper end of the gap before 300 updates": short(
                    max((gap.interval().high for gap in early), default=np.nan)
                ),
                "largest gap before 300 updates, in standard errors": short(most_early),
                "smallest gap from 3,000 updates on, in standard errors": short(least_late),
            },
            convention=CONVENTION,
        ),
        conclude(
            "C15",
            [*interior, lower.above(0, by=2)],
            decidable=data.at.decidable,
            measured={
                f"{word} cross-entropy at B = {B}": short(value)
                for B, ce in ((SMALL, small_ce), (large, large_ce))
                for word, value in (("lowest", ce.mean(axis=0).min()), ("final", ce[:, -1].mean()))
            },
            uncertainty={"difference of the final ones": str(lower)},
            convention=CONVENTION,
        ),
    ]


def _all(answers: list[bool | None]) -> bool | None:
    """False if one is, True if all are, else neither."""
    if False in answers:
        return False
    return True if answers and all(answers) else None


def _judge_opening(data: Data, large: int) -> Judgement:
    """R14: when the gap opens for good."""
    steps, gaps = _gaps(data.network, large)
    n = len(gaps)
    first, last = _opening(steps, gaps)
    without = [_opening(steps, np.delete(gaps, k, axis=0)) for k in range(n)] if n > 2 else []
    low = min([first, *(a for a, _ in without)])
    high = max([last, *(b for _, b in without)])
    opens = Estimate(math.sqrt(max(first, 1) * last), low=low, high=high, n=n)
    return conclude(
        "R14",
        [inside(opens, *_A_THOUSAND) if opens.has_interval else None],
        decidable=data.at.decides_readings,
        measured={"not yet at update": short(first), "for good from update": short(last)},
        uncertainty={"earliest and latest with a seed left out": [short(low), short(high)]},
        convention=CONVENTION,
    )


def _opening(steps: Array, gaps: Array) -> tuple[float, float]:
    """The last update at which the gap is not surely there, and the first from which it is."""
    there = [above(mean_of(column), 0, by=3) is True for column in gaps.T]
    open_since = len(there)
    while open_since and there[open_since - 1]:
        open_since -= 1
    if open_since == len(there):
        return float(steps[-1]), math.inf
    return float(steps[max(open_since - 1, 0)]), float(steps[open_since])


def _judge_linear(data: Data, gap: Estimate) -> Judgement:
    none = abs(gap.value) < _NONE and abs(gap.value) < 2 * gap.std
    some = abs(gap.value) >= _NONE and abs(gap.value) >= 2 * gap.std
    answer = True if none else False if some else None
    return conclude(
        "C34",
        [answer],
        decidable=data.at.decidable,
        measured={"gap": short(gap.value)},
        uncertainty={"gap": short(gap.std)},
        convention=CONVENTION,
    )


def _interior_minimum(curve: Array) -> bool:
    return 0 < int(np.argmin(curve)) < len(curve) - 1


def _in_errors(gap: Estimate) -> float:
    return gap.value / gap.std if gap.std > 0 else np.sign(gap.value) * np.inf


def draw(data: Data) -> tuple[Picture, ...]:
    """Both batch sizes during training."""
    runs, large = data.network, size_of(data.at).large
    sizes = (SMALL, large)
    top = max(runs.curve("test_cross_entropy", batch_size=B)[1][:, -1].max() for B in sizes)
    with house_style():
        figure = Figure(figsize=(9, 3.8), layout="constrained")
        panels = draw_training(figure, {f"B = {B}": runs.where(batch_size=B) for B in sizes})
        panels[1].set_ylim(0.2, max(1.0, 1.2 * top))
        panels[0].legend(loc="lower right")
        svg = to_svg(figure)
    ends = {B: runs.final("test_accuracy", batch_size=B).mean() for B in (SMALL, large)}
    picture = Picture(
        name="figure3",
        svg=svg,
        caption="Test accuracy and test cross-entropy during training with a small and a large "
        "batch. Lines are means over seeds, bands reach from the lowest to the highest.",
        alt="Two charts against gradient updates: test accuracy ends at "
        + " and ".join(f"{value:.3f} for B = {B}" for B, value in ends.items())
        + "; the second shows the test cross-entropies.",
    )
    return (picture,)


SECTION = Section("3", "Figure 3: small batches generalise better", measure, judge, draw)
