"""Figure 8 (appendix B): the small and the full batch again, with L2."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.figure import Figure

from noisescale.drawing import house_style, to_svg
from noisescale.paper.batches import (
    PENALTIES,
    PRIOR_PRECISION,
    SMALL,
    plain_plan,
    regularised_plan,
    size_of,
)
from noisescale.paper.claims import Judgement, Verdict, conclude
from noisescale.paper.figure3 import times_to_converge
from noisescale.paper.runs import Array, Runs, short
from noisescale.paper.section import (
    Circumstances,
    Context,
    Findings,
    Measured,
    Picture,
    Section,
)
from noisescale.paper.statistics import above, inside
from noisescale.paper.style import draw_training
from noisescale.uncertainty import Estimate, mean_of

_UNDIVIDED = "penalty undivided"
_LATE = 0.8  # of the updates: fluctuations are measured after that


@dataclass(frozen=True)
class Data(Measured):
    """The small and the large batch, without L2 and with it."""

    plain: Runs
    regularised: Runs

    def under(self, penalty: str) -> Runs:
        """The regularised runs under one reading of the penalty."""
        return self.regularised.where(prior_precision=PENALTIES[penalty])


def measure(context: Context) -> Data:
    """Train both batch sizes with L2, under both readings of the penalty."""
    large = size_of(context.at).large
    return Data(
        at=context.at,
        plain=context.runs(plain_plan(context, (SMALL, large))),
        regularised=context.runs(regularised_plan(context)),
    )


def judge(data: Data) -> Findings:
    """C23 to C26 and C39 under both readings of the penalty."""
    return Findings(
        statement=(
            f"With L2 regularisation, λ = {PRIOR_PRECISION:g}, the paper finds that the gap "
            "between small and full batches shrinks, that the test cross-entropy no longer rises "
            "late in training, and that full-batch training now takes longer. It does not say "
            "whether its penalty was divided by the number of classes like the cross-entropy seems "
            "to have been. Divided, all is a change of the learning rate's unit; undivided, the "
            "penalty is ten times as strong. Both are measured; the first decides."
        ),
        judgements=tuple(judgement for name in PENALTIES for judgement in _judge(data, name)),
        readings=tuple(_judge_readings(data)),
    )


def _value_inside(estimate: Estimate, low: float = -math.inf, high: float = math.inf) -> bool:
    """Of the value alone: how first criteria compare it with a bound."""
    return bool(low <= estimate.value <= high)


def _judge(
    data: Data,
    penalty: str,
    above: Callable[..., bool | None] = Estimate.above,
    inside: Callable[..., bool | None] = _value_inside,
) -> list[Judgement]:
    plain, runs, large = data.plain, data.under(penalty), size_of(data.at).large
    accuracy = {B: runs.final("test_accuracy", batch_size=B) for B in (SMALL, large)}
    plain_accuracy = {B: plain.final("test_accuracy", batch_size=B) for B in (SMALL, large)}
    gap = accuracy[SMALL] - accuracy[large]
    plain_gap = plain_accuracy[SMALL] - plain_accuracy[large]
    shrinks = mean_of(plain_gap - gap)
    halves = mean_of(plain_gap / 2 - gap)
    rises = {
        B: mean_of(final_over_lowest(runs.curve("test_cross_entropy", batch_size=B)[1]))
        for B in (SMALL, large)
    }
    times = {B: times_to_converge(runs, B) for B in (SMALL, large)}
    later = mean_of(times[large] - times[SMALL])
    below = mean_of(plain_accuracy[SMALL] - accuracy[large])
    lower = mean_of(
        plain.final("test_cross_entropy", batch_size=SMALL)
        - runs.final("test_cross_entropy", batch_size=large)
    )
    spread = {B: _late_spread(runs, B) for B in (SMALL, large)}
    fluctuates = mean_of(spread[SMALL] - spread[large])
    apart = mean_of(gap)

    def verdict(
        claim: str, parts: list[bool | None], measured: dict[str, float], errors: dict[str, float]
    ) -> Judgement:
        return conclude(
            claim,
            parts,
            decidable=data.at.decidable,
            measured={what: short(value) for what, value in measured.items()},
            uncertainty={what: short(value) for what, value in errors.items()},
            convention=penalty,
            primary=penalty == next(iter(PENALTIES)),
        )

    return [
        verdict(
            "C23",
            [inside(halves, 0), above(shrinks, 0, by=2)],
            {"gap without L2": plain_gap.mean(), "gap with L2": gap.mean()},
            {"difference": shrinks.std},
        ),
        verdict(
            "C24",
            [inside(rise, high=1.05) for rise in rises.values()],
            {f"final over lowest, B = {B}": rise.value for B, rise in rises.items()},
            {f"final over lowest, B = {B}": rise.std for B, rise in rises.items()},
        ),
        verdict(
            "C25",
            [above(later, 0, by=2)],
            {f"updates at B = {B}": t.mean() for B, t in times.items()},
            {"difference": later.std},
        ),
        verdict(
            "C26",
            [
                above(below, 0, by=2),
                above(lower, 0, by=2),
                inside(below, high=0.02),
            ],
            {"accuracy below by": below.value, "cross-entropy below by": lower.value},
            {"accuracy below by": below.std, "cross-entropy below by": lower.std},
        ),
        verdict(
            "C39",
            [above(fluctuates, 0, by=2), inside(apart, -0.01, 0.01)],
            {
                **{f"late deviation, B = {B}": s.mean() for B, s in spread.items()},
                "difference of the means": apart.value,
            },
            {
                "difference of the deviations": fluctuates.std,
                "difference of the means": apart.std,
            },
        ),
    ]


def _judge_readings(data: Data) -> Iterator[Judgement]:
    """R23 and R39, the same with the penalty undivided, and R25: the time to 99 %."""
    enough = data.at.decides_readings
    for judgement in _judge(data, _UNDIVIDED, above, inside):
        if judgement.id in ("C23", "C39"):
            verdict = judgement.verdict if enough else Verdict.UNDECIDED
            yield replace(judgement, id=f"R{judgement.id[1:]}", verdict=verdict, primary=True)
    large = size_of(data.at).large
    times = {
        (l2, B): times_to_converge(runs, B, 0.99)
        for l2, runs in (("with L2", data.under(_UNDIVIDED)), ("without", data.plain))
        for B in (SMALL, large)
    }
    later = mean_of(times["with L2", large] - times["with L2", SMALL])
    earlier = mean_of(times["without", SMALL] - times["without", large])
    yield conclude(
        "R25",
        [above(later, 0, by=2), above(earlier, 0, by=2)],
        decidable=enough,
        measured={f"updates {l2}, B = {B}": short(t.mean()) for (l2, B), t in times.items()},
        uncertainty={
            f"95 % interval, with L2, B = {large} minus B = {SMALL}": str(later.interval()),
            f"95 % interval, without, B = {SMALL} minus B = {large}": str(earlier.interval()),
        },
        convention=_UNDIVIDED,
    )


def final_over_lowest(curves: Array) -> Array:
    """By seed, from curves of a row each."""
    return np.asarray(curves[:, -1] / curves.min(axis=1))


def _late_spread(runs: Runs, batch_size: int) -> Array:
    """Standard deviation of the test accuracy late in training, by seed."""
    steps, curves = runs.curve("test_accuracy", batch_size=batch_size)
    return np.asarray(curves[:, steps >= _LATE * steps[-1]].std(axis=1, ddof=1))


def draw(data: Data) -> tuple[Picture, ...]:
    """One picture for each reading of the penalty."""
    return tuple(
        draw_penalty(data.at, data.under(penalty), data.plain, penalty) for penalty in PENALTIES
    )


def draw_penalty(at: Circumstances, runs: Runs, plain: Runs | None, penalty: str) -> Picture:
    """Runs under one reading of the penalty, those without L2 dotted if there are any."""
    sizes = (SMALL, size_of(at).large)
    dotted = {} if plain is None else {f"B = {B}, no L2": plain.where(batch_size=B) for B in sizes}
    with house_style():
        figure = Figure(figsize=(9, 3.8), layout="constrained")
        panels = draw_training(
            figure, {f"B = {B}": runs.where(batch_size=B) for B in sizes}, dotted=dotted
        )
        panels[1].set_ylim(0.2, 1.0)
        panels[0].legend(loc="lower right")
        svg = to_svg(figure)
    ends = {B: runs.final("test_accuracy", batch_size=B).mean() for B in sizes}
    return Picture(
        name="figure8" if penalty == next(iter(PENALTIES)) else "figure8-undivided",
        svg=svg,
        caption=f"As figure 3, with L2, λ = {PRIOR_PRECISION:g}, {penalty}. Lines are means over "
        "seeds, bands reach from the lowest to the highest"
        + ("; dotted: without L2." if dotted else "."),
        alt=f"Two charts against gradient updates with L2, {penalty}: test accuracy ends at "
        + " and ".join(f"{value:.3f} for B = {B}" for B, value in ends.items())
        + "; the second shows the test cross-entropies.",
    )


SECTION = Section("8", "Figure 8: the same with L2", measure, judge, draw)
