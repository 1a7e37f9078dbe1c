"""What tuning found, and how it got there."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noisescale.checks import check_whole
from noisescale.noise import AdamRecipe, Recipe
from noisescale.notebook import Displayed
from noisescale.uncertainty import finite_only

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Decision:
    """One step of the trail.

    Attributes:
        stage: 1, 2 or 3 of appendix E; 4 for the confirmation.
        changed: ``"batch_size"`` alone, or with it ``"learning_rate"`` or ``"momentum"``; for
            Adam the rule that it grew by. ``"seeds"`` in stage 4.
        recipe: what was tried.
        score, score_std: its mean over seeds, and the standard error.
        difference, difference_std: from the reference, paired by seed; None for the reference.
        n_seeds: how many seeds this rests on.
        accepted: whether the tuning went on from here.
        why: in words.
    """

    stage: int
    changed: str
    recipe: Recipe | AdamRecipe
    score: float
    score_std: float
    difference: float | None
    difference_std: float | None
    n_seeds: int
    accepted: bool
    why: str


@dataclass(frozen=True)
class TuneResult(Displayed):
    """A recipe with as large a batch as costs no accuracy.

    Attributes:
        recipe: the final recipe, with its notes: of those measured as no worse than the best, the
            one with the largest batch; of those confirmed, if that was asked for.
        start: the recipe of the best batch size at the first learning rate and momentum.
        complete: whether all stages came to their end within the budget.
        conclusion: what happened, in words.
        trail: every recipe that was judged, in order.
        updates_before, updates_after: gradient updates in the same number of epochs.
        epochs: that number.
        n_runs, n_updates, seconds: what the tuning took; seconds are summed over workers.
        seconds_per_update, seconds_per_example: the time of an update of B examples is about the
            first plus B times the second, fitted to these runs.
        notes: what to watch out for.
        tolerance: the loss that was no loss; None in results from before there always was one.
        inconclusive: why this recommends nothing, and what would decide it; None if it does.
        confirmed: whether fresh seeds show that ``recipe``, larger than ``start``, loses no more
            than the tolerance; None if nothing was to be confirmed.
        best_seen: the largest batch that was accepted, confirmed or not; if none was, the larger
            one that came nearest. None if none was tried.
    """

    recipe: Recipe | AdamRecipe
    start: Recipe | AdamRecipe
    complete: bool
    conclusion: str
    trail: tuple[Decision, ...]
    updates_before: int
    updates_after: int
    epochs: float
    n_runs: int
    n_updates: int
    seconds: float
    seconds_per_update: float
    seconds_per_example: float
    notes: tuple[str, ...]
    tolerance: float | None = None
    inconclusive: str | None = None
    confirmed: bool | None = None
    best_seen: Recipe | AdamRecipe | None = None

    def projected_speedup(self, devices: int) -> float:
        """Of the final recipe on so many devices, against the start on one.

        By the timings of these runs, a batch shared out evenly, communication not counted.
        """
        devices = check_whole("devices", devices, at_least=1)
        before = self._seconds(self.updates_before, self.start.batch_size)
        after = self._seconds(self.updates_after, self.recipe.batch_size / devices)
        return before / after

    def _seconds(self, updates: int, examples_each: float) -> float:
        return updates * (self.seconds_per_update + self.seconds_per_example * examples_each)

    def plot(self, where: "Axes | str | Path | None" = None) -> "Axes":
        """Draw the trail into ``where``: axes or a file's path."""
        from matplotlib.axes import Axes
        from matplotlib.figure import Figure

        from noisescale.drawing import save_figure
        from noisescale.tune.drawing import draw_trail

        axes = where if isinstance(where, Axes) else Figure(figsize=(7.5, 4.2)).add_subplot()
        draw_trail(self, axes)
        if isinstance(where, (str, Path)):
            save_figure(axes.figure, where, bbox_inches="tight")  # type: ignore[arg-type]
        return axes

    def _sketched(self) -> bool:
        return bool(self.trail)

    def save(self, path: "Path | str") -> None:
        """Write it into a ``.json`` file, for `noisescale report`; `load` reads it again."""
        from noisescale.tune.saved import save

        save(self, path)

    @staticmethod
    def load(path: "Path | str") -> "TuneResult":
        """The result that `save` wrote."""
        from noisescale.tune.saved import load

        return load(path)

    def to_dict(self) -> dict[str, Any]:
        """Everything by name, ready for JSON but for NaN, which is None."""
        content = dict(vars(self))
        content["recipe"], content["start"] = self.recipe.to_dict(), self.start.to_dict()
        content["best_seen"] = None if self.best_seen is None else self.best_seen.to_dict()
        content["trail"] = [asdict(d) | {"recipe": d.recipe.to_dict()} for d in self.trail]
        content["notes"] = list(self.notes)
        content["projected_speedup"] = {str(k): self.projected_speedup(k) for k in (1, 4, 16, 64)}
        plain: dict[str, Any] = finite_only(content)
        return plain

    def __repr__(self) -> str:
        return "\n".join(
            [
                *([] if self.inconclusive is None else [f"Inconclusive: {self.inconclusive}"]),
                self._headline(),
                "",
                *self._trail_lines(),
                "",
                self.conclusion,
                *(f"- {note}" for note in self.notes),
            ]
        )

    def _headline(self) -> str:
        r = self.recipe
        speedups = ", ".join(f"{self.projected_speedup(k):.2g} with {k}" for k in (1, 4, 16))
        return (
            f"{in_words(r)}: "
            f"{self.updates_after:,} updates where B = {self.start.batch_size} takes "
            f"{self.updates_before:,}.\n"
            f"Projected speed-up by devices: {speedups} (communication not counted). "
            f"{self.n_runs} runs, {self.n_updates:,} updates, {self.seconds:.3g} s of training."
        )

    def _trail_lines(self) -> list[str]:
        own = "β₁, β₂" if isinstance(self.recipe, AdamRecipe) else "m"
        rows = [("stage", "B", "ε", own, "score", "", "why")]
        for d in self.trail:
            error = "" if d.score_std != d.score_std else f" ± {d.score_std:.2g}"
            rows.append(
                (
                    str(d.stage),
                    str(d.recipe.batch_size),
                    f"{d.recipe.learning_rate:.4g}",
                    _averaging(d.recipe),
                    f"{d.score:.4g}{error}",
                    "taken" if d.accepted else "",
                    d.why,
                )
            )
        widths = [max(len(row[k]) for row in rows) for k in range(6)]
        return [
            "  ".join([*(c.ljust(w) for c, w in zip(row[:6], widths, strict=True)), row[6]])
            for row in rows
        ]


def in_words(recipe: Recipe | AdamRecipe) -> str:
    """The quantities that the tuning moves."""
    own = "betas" if isinstance(recipe, AdamRecipe) else "momentum"
    decay = f", weight decay {recipe.weight_decay:.4g}" if recipe.weight_decay else ""
    return (
        f"B = {recipe.batch_size}, learning rate {recipe.learning_rate:.4g}, "
        f"{own} {_averaging(recipe)}{decay}"
    )


def _averaging(recipe: Recipe | AdamRecipe) -> str:
    if isinstance(recipe, AdamRecipe):
        return " and ".join(f"{beta:.4g}" for beta in recipe.betas)
    return f"{recipe.momentum:.4g}"
