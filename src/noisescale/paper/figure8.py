"""Figure 8 (appendix B): the small and the full batch again, with L2."""

import numpy as np
from matplotlib.figure import Figure

from noisescale.paper.batches import (
    PENALTIES,
    PRIOR_PRECISION,
    SMALL,
    plain_plan,
    regularised_plan,
    size_of,
)
from noisescale.paper.claims import Judgement, conclude
from noisescale.paper.figure3 import times_to_converge
from noisescale.paper.runs import Array, Runs, estimate, short
from noisescale.paper.section import Context, Outcome, Picture, Section
from noisescale.paper.style import COLOURS, draw_band, house_style, to_svg

_LATE = 0.8  # of the updates: fluctuations are measured after that


def measure(context: Context) -> Outcome:
    """Compare both batch sizes with L2, under both readings of the penalty."""
    large = size_of(context).large
    plain = context.runs(plain_plan(context, (SMALL, large)))
    regularised = context.runs(regularised_plan(context))
    primary, *others = PENALTIES
    return Outcome(
        statement=(
            f"With L2 regularisation, λ = {PRIOR_PRECISION:g}, the paper finds that the gap "
            "between small and full batches shrinks, that the test cross-entropy no longer rises "
            "late in training, and that full-batch training now takes longer. It does not say "
            "whether its penalty was divided by the number of classes like the cross-entropy seems "
            "to have been. Divided, all is a change of the learning rate's unit; undivided, the "
            "penalty is ten times as strong. Both are measured; the first decides."
        ),
        pictures=tuple(_draw(plain, regularised, large, name) for name in PENALTIES),
        judgements=tuple(
            judgement
            for name in (primary, *others)
            for judgement in _judge(context, plain, regularised, large, name)
        ),
    )


def _judge(
    context: Context, plain: Runs, regularised: Runs, large: int, penalty: str
) -> list[Judgement]:
    runs = regularised.where(prior_precision=PENALTIES[penalty])
    accuracy = {B: runs.final("test_accuracy", batch_size=B) for B in (SMALL, large)}
    plain_accuracy = {B: plain.final("test_accuracy", batch_size=B) for B in (SMALL, large)}
    gap = accuracy[SMALL] - accuracy[large]
    plain_gap = plain_accuracy[SMALL] - plain_accuracy[large]
    shrinks = estimate(plain_gap - gap)
    halves = estimate(plain_gap / 2 - gap)
    rises = {
        B: estimate(_final_over_lowest(runs.curve("test_cross_entropy", batch_size=B)[1]))
        for B in (SMALL, large)
    }
    times = {B: times_to_converge(runs, B) for B in (SMALL, large)}
    later = estimate(times[large] - times[SMALL])
    below = estimate(plain_accuracy[SMALL] - accuracy[large])
    lower = estimate(
        plain.final("test_cross_entropy", batch_size=SMALL)
        - runs.final("test_cross_entropy", batch_size=large)
    )
    spread = {B: _late_spread(runs, B) for B in (SMALL, large)}
    fluctuates = estimate(spread[SMALL] - spread[large])
    apart = estimate(gap)

    def verdict(
        claim: str, parts: list[bool | None], measured: dict[str, float], errors: dict[str, float]
    ) -> Judgement:
        return conclude(
            claim,
            parts,
            decidable=context.decidable,
            measured={what: short(value) for what, value in measured.items()},
            uncertainty={what: short(value) for what, value in errors.items()},
            convention=penalty,
            primary=penalty == next(iter(PENALTIES)),
        )

    return [
        verdict(
            "C23",
            [halves.mean > 0, shrinks.above(0, by=2)],
            {"gap without L2": plain_gap.mean(), "gap with L2": gap.mean()},
            {"difference": shrinks.error},
        ),
        verdict(
            "C24",
            [rise.mean <= 1.05 for rise in rises.values()],
            {f"final over lowest, B = {B}": rise.mean for B, rise in rises.items()},
            {f"final over lowest, B = {B}": rise.error for B, rise in rises.items()},
        ),
        verdict(
            "C25",
            [later.above(0, by=2)],
            {f"updates at B = {B}": t.mean() for B, t in times.items()},
            {"difference": later.error},
        ),
        verdict(
            "C26",
            [below.above(0, by=2), lower.above(0, by=2), below.mean < 0.02],
            {"accuracy below by": below.mean, "cross-entropy below by": lower.mean},
            {"accuracy below by": below.error, "cross-entropy below by": lower.error},
        ),
        verdict(
            "C39",
            [fluctuates.above(0, by=2), abs(apart.mean) < 0.01],
            {
                **{f"late deviation, B = {B}": s.mean() for B, s in spread.items()},
                "difference of the means": apart.mean,
            },
            {
                "difference of the deviations": fluctuates.error,
                "difference of the means": apart.error,
            },
        ),
    ]


def _final_over_lowest(curves: Array) -> Array:
    return np.asarray(curves[:, -1] / curves.min(axis=1))


def _late_spread(runs: Runs, batch_size: int) -> Array:
    """Standard deviation of the test accuracy late in training, by seed."""
    steps, curves = runs.curve("test_accuracy", batch_size=batch_size)
    return np.asarray(curves[:, steps >= _LATE * steps[-1]].std(axis=1, ddof=1))


def _draw(plain: Runs, regularised: Runs, large: int, penalty: str) -> Picture:
    runs = regularised.where(prior_precision=PENALTIES[penalty])
    with house_style():
        figure = Figure(figsize=(9, 3.8), layout="constrained")
        panels = figure.subplots(1, 2)
        for axes, metric, label, letter in (
            (panels[0], "test_accuracy", "test accuracy", "a"),
            (panels[1], "test_cross_entropy", "test cross-entropy, nats per image", "b"),
        ):
            for colour, B in enumerate((SMALL, large)):
                steps, curves = runs.curve(metric, batch_size=B)
                draw_band(axes, steps[1:], curves[:, 1:], f"B = {B}", colour)
                steps, curves = plain.curve(metric, batch_size=B)
                axes.plot(
                    steps[1:],
                    curves.mean(axis=0)[1:],
                    color=COLOURS[colour],
                    linewidth=0.8,
                    linestyle=":",
                    label=f"B = {B}, no L2",
                )
            axes.set(xscale="log", xlabel="gradient updates", ylabel=label, title=f"({letter})")
        panels[0].set_ylim(0.5, None)
        panels[1].set_ylim(0.2, 1.0)
        panels[0].legend(loc="lower right")
        svg = to_svg(figure)
    ends = {B: runs.final("test_accuracy", batch_size=B).mean() for B in (SMALL, large)}
    return Picture(
        name="figure8" if penalty == next(iter(PENALTIES)) else "figure8-undivided",
        svg=svg,
        caption=f"As figure 3, with L2, λ = {PRIOR_PRECISION:g}, {penalty}. Lines are means over "
        "seeds, bands reach from the lowest to the highest; dotted: without L2.",
        alt=f"Two charts against gradient updates with L2, {penalty}: test accuracy ends at "
        + " and ".join(f"{value:.3f} for B = {B}" for B, value in ends.items())
        + "; the second shows the test cross-entropies.",
    )


SECTION = Section(id="8", title="Figure 8: the same with L2", measure=measure, from_runs=True)
