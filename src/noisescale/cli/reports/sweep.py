"""Training runs of a sweep: where accuracy peaks over batch sizes, and how that peak moves."""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from noisescale.cli.reports.page import Chapter, Download, Table, picture
from noisescale.cli.runs_table import as_keys, varying
from noisescale.drawing import COLOURS, literal
from noisescale.errors import InputError
from noisescale.sweep.listing import first_failure
from noisescale.sweep.peak import Peak, find_peak, reached_by
from noisescale.sweep.rules import fit_scaling_rule

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST = len(COLOURS)  # lines in a picture, and settings that are answered for one by one
_RULES = ("learning_rate", "n_train", "momentum")


@dataclass(frozen=True)
class Setting:
    """Runs that differ in batch size and seed alone."""

    name: str
    runs: pd.DataFrame
    peak: Peak | None
    trouble: str | None  # why there is no peak


def sweep_chapter(frame: pd.DataFrame, curves: pd.DataFrame) -> Chapter:
    """What the runs of a sweep say; ``curves`` are their evaluations, a row each."""
    counts = frame["status"].value_counts().to_dict()
    runs = frame[frame["status"] != "failed"]
    metric = _metric(runs)
    if metric is not None:  # a diverged run counts as chance in every mean below
        runs = runs[runs[metric].notna() | (runs["status"] == "diverged")]
        runs = runs.assign(**{metric: reached_by(runs, metric)})
    settings = [] if metric is None else _settings(runs, metric)
    failure = first_failure(frame)
    notes = [] if failure is None else [f"{counts['failed']} runs failed, the first: {failure}"]
    if diverged := counts.get("diverged"):
        notes.append(f"{diverged} runs diverged: they count as chance in every mean.")
    if len(settings) > _MOST:
        notes.append(f"{len(settings)} settings: the first {_MOST} are drawn and answered for.")
    told = ", ".join(f"{count} {status}" for status, count in counts.items())
    return Chapter(
        question="Which batch size is best?",
        about=f"{len(frame)} training runs ({told}).",
        answer=_answer(runs, settings[:_MOST], metric),
        notes=tuple(notes),
        pictures=tuple(_pictures(settings[:_MOST], curves, metric)),
        tables=tuple(_tables(settings, metric)),
        downloads=(
            Download("runs.csv", "all runs", frame.to_csv(index=False)),
            Download("curves.csv", "their curves", curves.to_csv(index=False)),
        ),
    )


def _metric(runs: pd.DataFrame) -> str | None:
    """What the runs are judged by: test accuracy, or else training accuracy."""
    for name in ("test_accuracy", "train_accuracy"):
        if name in runs and runs[name].notna().any():
            return name
    return None


def _settings(runs: pd.DataFrame, metric: str) -> list[Setting]:
    """The runs by what they differ in, beside batch size and seed."""
    names = [name for name in varying(runs) if name not in ("batch_size", "seed")]
    groups: list[tuple[Any, pd.DataFrame]] = [((), runs)]
    if names:
        groups = list(runs.groupby(as_keys(runs, names), sort=True))
    settings = []
    for k, (values, part) in enumerate(groups):
        name = _name(names, values)
        peak, trouble = None, None
        if k < _MOST and part["batch_size"].nunique() > 1:
            try:
                peak = find_peak(part, metric=metric)
            except InputError as error:
                trouble = str(error)
        settings.append(Setting(name, part, peak, trouble))
    return settings


def _name(names: list[str], values: Hashable) -> str:
    parts = values if isinstance(values, tuple) else (values,)
    shown = [f"{value:g}" if isinstance(value, float) else str(value) for value in parts]
    return ", ".join(
        f"{name.replace('_', ' ')} {value}" for name, value in zip(names, shown, strict=True)
    )


def _answer(runs: pd.DataFrame, settings: list[Setting], metric: str | None) -> tuple[str, ...]:
    if metric is None:
        return ("No run has come to an accuracy: there is nothing to compare yet.",)
    told = [_best(settings, metric)]
    for setting in settings:
        at = f"At {setting.name}: " if setting.name else ""
        if setting.trouble is not None:
            told.append(f"{at}no peak ({setting.trouble})")
        elif setting.peak is not None:
            told.append(f"{at}{_peak_in_words(setting.peak)}")
    return (*told, *_rules(runs))


def _best(settings: list[Setting], metric: str) -> str:
    means = [
        (float(part[metric].mean()), size, setting.name, len(part))
        for setting in settings
        for size, part in setting.runs.groupby("batch_size")
    ]
    value, size, name, n = max(means, key=lambda row: row[0])
    at = f", {name}" if name else ""
    many = "run" if n == 1 else "runs"
    return (
        f"The highest mean {metric.replace('_', ' ')}, {value:.4f}, has batch size {size}{at} "
        f"({n} {many})."
    )


def _peak_in_words(peak: Peak) -> str:
    seen = f"{peak.best:g} was the best tried, accuracy {peak.accuracy:.4f}"
    if not math.isnan(peak.accuracy_std):
        seen += f" ± {peak.accuracy_std:.4f}"
    if peak.undetermined is not None:
        return f"the best batch size is not resolved ({peak.undetermined}); {seen}."
    return f"the best batch size is {peak.estimate}; {seen}, {peak.n_seeds} seeds."


def _rules(runs: pd.DataFrame) -> list[str]:
    """How the best batch size goes with what varied, if one quantity did."""
    varied = [name for name in varying(runs) if name not in ("batch_size", "seed", "steps")]
    if len(varied) != 1 or varied[0] not in _RULES or runs[varied[0]].nunique() < 3:
        return []
    try:
        rule = fit_scaling_rule(runs, varied[0])
    except InputError:
        return []
    if rule.slope is None:
        return [f"Only {rule.n_resolved} peaks are resolved: three are needed to fit a rule."]
    over = "1/(1 - m)" if varied[0] == "momentum" else varied[0].replace("_", " ")
    return [f"The best batch size grows as the {over} to the power {rule.slope}."]


def _pictures(
    settings: list[Setting], curves: pd.DataFrame, metric: str | None
) -> list[tuple[str, str]]:
    if metric is None:
        return []
    name, made = metric.replace("_", " "), []
    peaked = [(setting.name, setting.peak) for setting in settings if setting.peak is not None]
    if peaked:
        made.append(
            picture(
                lambda axes: _draw_peaks(axes, peaked, name),
                f"Mean {name} against the batch size with its standard error over seeds, a line a "
                "setting; dashed where the fitted top is.",
            )
        )
    runs = pd.concat([setting.runs for setting in settings])
    runs = runs[runs["key"].isin(curves["key"])]
    if metric in curves and len(runs):
        best = max(settings, key=lambda setting: setting.runs[metric].max())
        of = f" at {best.name}" if best.name else ""
        made.append(
            picture(
                lambda axes: _draw_curves(axes, best.runs, curves, metric),
                f"Mean {name} through training{of} of runs that did not diverge, a line a batch "
                "size.",
            )
        )
    return made


def _draw_peaks(axes: "Axes", peaked: list[tuple[str, Peak]], ylabel: str) -> None:
    for colour, (name, peak) in zip(COLOURS, peaked, strict=False):
        errors = [0.0 if math.isnan(error) else error for error in peak.std]
        axes.errorbar(
            peak.sizes,
            peak.mean,
            yerr=errors,
            fmt=".-",
            capsize=2,
            color=colour,
            label=literal(name),
        )
        if peak.fitted is not None:
            axes.axvline(peak.fitted, linestyle="--", linewidth=0.8, color=colour)
    axes.set(xscale="log", xlabel="batch size", ylabel=ylabel)
    if len(peaked) > 1:
        axes.legend(fontsize="small")


def _draw_curves(axes: "Axes", runs: pd.DataFrame, curves: pd.DataFrame, metric: str) -> None:
    runs = runs[runs["status"] != "diverged"]
    sizes = sorted(runs["batch_size"].unique())
    every = max(1, -(-len(sizes) // _MOST))
    for colour, size in zip(COLOURS, sizes[::every], strict=False):
        keys = runs.loc[runs["batch_size"] == size, "key"]
        mean = curves[curves["key"].isin(keys)].groupby("step")[metric].mean()
        mean = mean[mean.index > 0]
        axes.plot(mean.index, mean, color=colour, label=f"{size:g}")
    axes.set(xscale="log", xlabel="updates", ylabel=metric.replace("_", " "))
    axes.legend(title="batch size", fontsize="small")


def _tables(settings: list[Setting], metric: str | None) -> list[Table]:
    if metric is None:
        return []
    rows = []
    for setting in settings:
        for size, part in setting.runs.groupby("batch_size"):
            values = part[metric]
            error = float(values.std() / math.sqrt(len(values))) if len(values) > 1 else math.nan
            diverged = int((part["status"] == "diverged").sum())
            rows.append((setting.name, size, len(part), diverged, float(values.mean()), error))
    columns = ("setting", "batch size", "runs", "diverged", metric, "standard error")
    return [Table.of("Means over seeds, a diverged run counted as chance", columns, rows)]
