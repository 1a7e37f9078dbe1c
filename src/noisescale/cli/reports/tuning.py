"""A tuning: the recipe that it recommends and its trail, or the trials of a store alone."""

import math
from typing import TYPE_CHECKING

import pandas as pd

from noisescale.cli.reports.page import Chapter, Download, Table, picture, shown
from noisescale.cli.runs_table import as_keys
from noisescale.sweep.peak import reached_by
from noisescale.tune.result import TuneResult, in_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RECIPE = ("function", "batch_size", "learning_rate", "momentum", "betas", "weight_decay")
_QUESTION = "How large a batch costs nothing?"


def tuning_chapter(result: TuneResult) -> Chapter:
    """What a finished tuning found."""
    rows = [
        (
            d.stage,
            in_words(d.recipe),
            d.score,
            d.score_std,
            d.difference,
            d.n_seeds,
            "taken" if d.accepted else "",
            d.why,
        )
        for d in result.trail
    ]
    columns = (
        "stage",
        "recipe",
        "score",
        "standard error",
        "difference",
        "seeds",
        "",
        "why",
    )
    verdict = (
        f"Take {in_words(result.recipe)}: {result.updates_after:,} updates where B = "
        f"{result.start.batch_size} takes {result.updates_before:,}."
    )
    if result.inconclusive is not None:
        verdict = f"Inconclusive: {result.inconclusive}"
    speed = ", ".join(f"{result.projected_speedup(k):.2g} with {k}" for k in (1, 4, 16))
    return Chapter(
        question=_QUESTION,
        about=(
            f"{result.n_runs} runs, {result.n_updates:,} updates, {result.seconds:.3g} s of "
            "training."
        ),
        answer=(
            verdict,
            result.conclusion,
            f"Projected speed-up by devices: {speed} (communication not counted).",
        ),
        notes=result.notes,
        pictures=(
            picture(
                result.plot,
                "Validation score against batch size with its standard error, a colour a stage; "
                "filled where the tuning went on from, dashed the final batch.",
            ),
        ),
        tables=(Table.of("The trail", columns, rows),),
        downloads=(
            Download("trail.csv", "the trail", pd.DataFrame(rows, columns=columns).to_csv()),
        ),
    )


def trials_chapter(frame: pd.DataFrame) -> Chapter:
    """What the trials of a store say by themselves: which recipe scores best."""
    names = [name for name in _RECIPE if name in frame]
    scored = frame["score"].notna() if "score" in frame else frame["status"].isna()
    rows = []
    # Scores of one function have a worst; those of two cannot be compared.
    for _, trials in frame[scored | (frame["status"] == "diverged")].groupby("function"):
        if (trials["status"] == "diverged").all():
            continue
        trials = trials.assign(score=reached_by(trials, "score"))
        for values, part in trials.groupby(as_keys(trials, names), dropna=False):
            scores = part["score"]
            error = float(scores.std() / math.sqrt(len(scores))) if len(scores) > 1 else math.nan
            diverged = int((part["status"] == "diverged").sum())
            rows.append((*values, len(part), diverged, float(scores.mean()), error))
    columns = (*names, "runs", "diverged", "score", "standard error")
    means = pd.DataFrame(rows, columns=columns).sort_values("score", ascending=False)
    failed, diverged = (int((frame["status"] == status).sum()) for status in ("failed", "diverged"))
    answer = "No trial has come to a score yet."
    if len(means):
        top = means.iloc[0]
        recipe = ", ".join(
            f"{name.replace('_', ' ')} {shown(top[name])}" for name in names if name != "function"
        )
        answer = f"The highest mean score, {top['score']:.4g}, has {recipe} ({top['runs']} runs)."
    return Chapter(
        question=_QUESTION,
        about=(
            f"{len(frame)} trials ({failed} failed). What a tuning decided is in tuning.json, "
            "which `noisescale tune` writes into its folder, and `result.save`."
        ),
        answer=(answer,),
        notes=(f"{diverged} trials diverged: they count as the worst score seen.",)
        * bool(diverged),
        pictures=(
            picture(
                lambda axes: _draw_scores(axes, means),
                "Mean score against batch size with its standard error over seeds, a colour a "
                "learning rate.",
            ),
        )
        if len(means)
        else (),
        tables=(Table.of("Means over seeds", columns, list(means.itertuples(index=False))),),
        downloads=(Download("trials.csv", "all trials", frame.to_csv(index=False)),),
    )


def _draw_scores(axes: "Axes", means: pd.DataFrame) -> None:
    for rate, part in means.groupby("learning_rate"):
        part = part.sort_values("batch_size")
        errors = part["standard error"].fillna(0.0)
        axes.errorbar(
            part["batch_size"], part["score"], yerr=errors, fmt="o", capsize=2, label=f"{rate:.4g}"
        )
    axes.set(xscale="log", xlabel="batch size", ylabel="score")
    axes.legend(title="learning rate", fontsize="small")
