"""Figure 3: a small and a full batch, test accuracy and cross-entropy during training."""

import numpy as np
from matplotlib.figure import Figure

from noisescale.paper.batches import N_TRAIN, SMALL, linear_plan, plain_plan, size_of
from noisescale.paper.claims import Judgement, conclude
from noisescale.paper.runs import Array, Estimate, Runs, estimate, short, updates_to
from noisescale.paper.section import Context, Measurement, Outcome, Picture, Section
from noisescale.paper.style import draw_band, house_style, to_svg

_CONVENTION = "cost divided by the number of classes"


def measure(context: Context) -> Outcome:
    """Compare both batch sizes; judge C13, C14, C15 and, for a linear model, C34."""
    large = size_of(context).large
    runs = context.runs(plain_plan(context, (SMALL, large)))
    linear = context.runs(linear_plan(context))
    gap = estimate(_gap(runs, large))
    linear_gap = estimate(_gap(linear, large))
    how = f"{context.seeds} seeds, paired, N = {N_TRAIN:,}, {size_of(context).steps:,} updates"
    return Outcome(
        statement=(
            f"The network is trained on {N_TRAIN:,} images with batches of {SMALL} and of {large}, "
            "nothing else different. The paper finds that the small batch converges later but "
            "generalises better, with a gap in test accuracy after about a thousand updates, and "
            "that the test cross-entropy of both passes a minimum and rises again. It also "
            "mentions that a linear model shows no such gap."
        ),
        pictures=(_draw(runs, large),),
        measurements=(
            Measurement(f"test accuracy at B = {SMALL} minus B = {large}", str(gap), how),
            Measurement("the same for softmax regression", str(linear_gap), how),
        ),
        judgements=(*_judge(context, runs, large), _judge_linear(context, linear_gap)),
    )


def _gap(runs: Runs, large: int) -> Array:
    small_batch, large_batch = (runs.final("test_accuracy", batch_size=B) for B in (SMALL, large))
    return np.asarray(small_batch - large_batch)


def times_to_converge(runs: Runs, batch_size: int) -> Array:
    """Updates to 95 % of the final test accuracy, by seed."""
    steps, curves = runs.curve("test_accuracy", batch_size=batch_size)
    return np.array([updates_to(steps, curve) for curve in curves])


def _judge(context: Context, runs: Runs, large: int) -> list[Judgement]:
    times = {B: times_to_converge(runs, B) for B in (SMALL, large)}
    later = estimate(times[SMALL] - times[large])
    steps, small_curve = runs.curve("test_accuracy", batch_size=SMALL)
    gaps = [
        (step, estimate(column))
        for step, column in zip(
            steps, (small_curve - runs.curve("test_accuracy", batch_size=large)[1]).T, strict=True
        )
    ]
    early = [gap for step, gap in gaps if 0 < step < 300]
    late = [gap for step, gap in gaps if step >= 3_000]
    small_ce, large_ce = (runs.curve("test_cross_entropy", batch_size=B)[1] for B in (SMALL, large))
    lower = estimate(large_ce[:, -1] - small_ce[:, -1])
    interior = [_interior_minimum(curves.mean(axis=0)) for curves in (small_ce, large_ce)]
    most_early = max((_in_errors(gap) for gap in early), default=np.nan)
    least_late = min((_in_errors(gap) for gap in late), default=np.nan)
    return [
        conclude(
            "C13",
            [later.above(0, by=2)],
            decidable=context.decidable,
            measured={f"updates at B = {B}": short(t.mean()) for B, t in times.items()},
            uncertainty={"difference": str(later)},
            convention=_CONVENTION,
        ),
        conclude(
            "C14",
            [most_early < 2, True if least_late > 3 else False if least_late < -3 else None],
            decidable=context.decidable,
            measured={"final gap": short(gaps[-1][1].mean)},
            uncertainty={
                "final gap": short(gaps[-1][1].error),
                "largest gap before 300 updates, in standard errors": short(most_early),
                "smallest gap from 3,000 updates on, in standard errors": short(least_late),
            },
            convention=_CONVENTION,
        ),
        conclude(
            "C15",
            [*interior, lower.above(0, by=2)],
            decidable=context.decidable,
            measured={
                f"{word} cross-entropy at B = {B}": short(value)
                for B, ce in ((SMALL, small_ce), (large, large_ce))
                for word, value in (("lowest", ce.mean(axis=0).min()), ("final", ce[:, -1].mean()))
            },
            uncertainty={"difference of the final ones": str(lower)},
            convention=_CONVENTION,
        ),
    ]


def _judge_linear(context: Context, gap: Estimate) -> Judgement:
    none = abs(gap.mean) < 0.005 and abs(gap.mean) < 2 * gap.error
    some = abs(gap.mean) >= 0.005 and abs(gap.mean) >= 2 * gap.error
    return conclude(
        "C34",
        [True if none else False if some else None],
        decidable=context.decidable,
        measured={"gap": short(gap.mean)},
        uncertainty={"gap": short(gap.error)},
        convention=_CONVENTION,
    )


def _interior_minimum(curve: Array) -> bool:
    return 0 < int(np.argmin(curve)) < len(curve) - 1


def _in_errors(gap: Estimate) -> float:
    return gap.mean / gap.error if gap.error > 0 else np.sign(gap.mean) * np.inf


def _draw(runs: Runs, large: int) -> Picture:
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
            axes.set(xscale="log", xlabel="gradient updates", ylabel=label, title=f"({letter})")
        panels[0].set_ylim(0.5, None)
        top = max(
            runs.curve("test_cross_entropy", batch_size=B)[1][:, -1].max() for B in (SMALL, large)
        )
        panels[1].set_ylim(0.2, max(1.0, 1.2 * top))
        panels[0].legend(loc="lower right")
        svg = to_svg(figure)
    ends = {B: runs.final("test_accuracy", batch_size=B).mean() for B in (SMALL, large)}
    return Picture(
        name="figure3",
        svg=svg,
        caption="Test accuracy and test cross-entropy during training with a small and a large "
        "batch. Lines are means over seeds, bands reach from the lowest to the highest.",
        alt="Two charts against gradient updates: test accuracy ends at "
        + " and ".join(f"{value:.3f} for B = {B}" for B, value in ends.items())
        + "; the second shows the test cross-entropies.",
    )


SECTION = Section(
    id="3", title="Figure 3: small batches generalise better", measure=measure, from_runs=True
)
