"""Appendix E of the paper, with statistics: its first stage, and what all of them need.

The largest batch that costs no accuracy is looked for from there on (margin.py). The number of
epochs is fixed throughout, so updates go as 1/B: with the learning rate or 1/(1 - m)
proportional to B, noise scale and effective training time both stay as they are. Every decision is
a function of stored scores, so a tuning that was killed comes to the same end.
"""

import math
import warnings
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import scipy.optimize

from noisescale.errors import InputError
from noisescale.jobs.progress import Progress
from noisescale.noise import AdamRecipe, Recipe
from noisescale.sweep.peak import find_peak
from noisescale.tune.comparison import (
    Array,
    Difference,
    looks,
    usual_spread,
)
from noisescale.tune.result import Decision, TuneResult, in_words
from noisescale.tune.scores import AnyRecipe, Trials, means, peak_frame
from noisescale.uncertainty import Estimate, mean_of

ADAM_WAYS = ("square_root", "half_life")  # of a saved trail too
FACTOR = 3  # the paper's, for batch sizes and for a learning rate that is too high
REDUCTIONS = 5  # of the learning rate before giving up
_WORTHWHILE = 1.2  # growth up to the hardware's limit that is still worth a step
_NEARBY = (0.5, 0.75, 1.25, 1.5)  # of the final batch size


class TuneWarning(UserWarning):
    """Something about the training function makes its scores doubtful."""


@dataclass(frozen=True)
class Plan:
    """What was asked for; ``first`` is where stage 1 begins, but for the batch size."""

    first: AnyRecipe
    n_train: int
    epochs: float
    sizes: tuple[int, ...]
    limit: int
    seeds: int
    max_seeds: int
    tolerance: float
    confirm: bool = True
    spacing: int = 4  # ratio of the first batch sizes, by which they are widened too

    @property
    def looks(self) -> tuple[int, ...]:
        """At how many seeds a comparison may end."""
        return looks(self.seeds, self.max_seeds)

    @property
    def ways(self) -> tuple[str, ...]:
        """What grows with the batch, one after the other: appendix E's, or the rules of Adam."""
        return ADAM_WAYS if isinstance(self.first, AdamRecipe) else ("learning_rate", "momentum")


@dataclass
class FirstStage:
    """Stage 1. ``current`` is the best recipe so far, ``reference`` what it must match."""

    plan: Plan
    trials: Trials
    progress: Progress
    notes: list[str]
    trail: list[Decision] = field(default_factory=list)
    current: AnyRecipe | None = None
    start: AnyRecipe | None = None
    reference: AnyRecipe | None = None
    base: AnyRecipe | None = None  # from which the batch grows in one way
    usual: float = 0.0  # the usual spread of a difference between recipes
    sizes: list[int] = field(default_factory=list)  # of stage 1, and their scores
    scores: Array = field(default_factory=lambda: np.empty((0, 0)))
    resolved: bool = False  # whether these have a peak
    constant: float | None = None  # the score, if it is the same for all of them
    broken: list[AnyRecipe] = field(default_factory=list)  # gave no score in some seed
    unsound: str | None = None  # why the recommendation is none, if all that was taken broke down

    # Stage 1 ------------------------------------------------------------------------------------

    def _find_batch_size(self) -> None:
        rate = self.plan.first.learning_rate
        for _ in range(REDUCTIONS + 1):
            self.progress.line(f"stage 1: batch sizes at learning rate {rate:.3g}")
            found = self._search(rate)
            if found is not None:
                self._settle(rate, *found)
                return
            self.progress.decided(
                f"stage 1: training is not stable at learning rate {rate:.3g}; trying "
                f"{rate / FACTOR:.3g}"
            )
            self.notes.append(f"training was not stable at learning rate {rate:.3g}")
            rate /= FACTOR
        highest = self.plan.first.learning_rate
        raise InputError(
            f"training gave no score at any learning rate from {highest:.3g} down to "
            f"{rate * FACTOR:.3g}: it diverged or did not end in time, so there is nothing to tune."
        )

    def _search(self, rate: float) -> tuple[list[int], Array] | None:
        """Batch sizes around the best, with their scores; None if training is not stable."""
        sizes = list(self.plan.sizes)
        while True:
            scores = self._scores_at(rate, sizes)
            broken = np.asarray(np.isnan(scores).any(axis=1))
            # The largest batch is the quietest: if that breaks down, or most do, the rate is high.
            if broken[-1] or 2 * broken.sum() > len(sizes):
                return None
            k = int(np.argmax(means(scores)))
            if self.current is None or self.start is None:
                self.current = self.start = self._recipe(rate, sizes[k])
            if _same(scores):  # widening would follow nothing
                break
            if k == 0 and sizes[0] > 1:
                sizes.insert(0, max(1, sizes[0] // self.plan.spacing))
            elif k == len(sizes) - 1 and sizes[-1] < self.plan.limit:
                sizes.append(min(sizes[-1] * self.plan.spacing, self.plan.limit))
            else:
                break
        finer = {round(math.sqrt(a * b)) for a, b in pairwise(sizes) if sizes[k] in (a, b)}
        sizes = sorted({*sizes, *finer})
        return sizes, self._scores_at(rate, sizes)

    def _scores(self, recipes: list[AnyRecipe], n_seeds: int, *, skip: int = 0) -> Array:
        """(recipes, seeds), after the first ``skip`` seeds; what breaks down is remembered."""
        scores = self.trials.scores(recipes, n_seeds, skip)
        rows = zip(recipes, scores, strict=True)
        self.broken += [recipe for recipe, row in rows if np.isnan(row).any()]
        return scores

    def _settle(self, rate: float, sizes: list[int], scores: Array) -> None:
        """The optimum of stage 1, with words for a curve that has none."""
        self._suspect(rate, scores)
        self.sizes, self.scores, self.usual = sizes, scores, usual_spread(scores)
        peak = find_peak(peak_frame(sizes, scores), metric="score")
        self.resolved = peak.undetermined is None
        observed = sizes[int(np.argmax(means(scores)))]
        if peak.undetermined is None:
            assert peak.fitted is not None
            best = min(max(round(peak.fitted), 1), self.plan.limit)
            why = f"the score peaks at B = {peak.estimate}"
        else:
            best, why = observed, self._without_peak(sizes, scores, peak.undetermined)
        row = self._scores([self._recipe(rate, best)], self.plan.seeds)[0]
        if broken := int(np.isnan(row).sum()):
            why += f", but B = {best} gave no score in {broken} of {len(row)} seeds: the best "
            why += "observed is taken"
            sizes, scores = [*sizes, best], np.vstack([scores, row])
            best, row = observed, scores[sizes.index(observed)]
        self.start = self.current = self.reference = self._recipe(rate, best)
        for size, other in zip(sizes, scores, strict=True):
            if size != best:
                self._record(1, "batch_size", self._recipe(rate, size), other, None, False, "")
        self._record(1, "batch_size", self.start, row, None, True, why)

    def _without_peak(self, sizes: list[int], scores: Array, reason: str) -> str:
        """Why the best size observed is no more than that."""
        k = int(np.argmax(means(scores)))
        told = f"no peak is resolved ({reason}): the best observed is taken"
        if self.constant is not None:
            told = "the score is the same for every batch size: any would do"
        elif sizes[k] == self.plan.limit:
            told = (
                f"the score still rises at the largest batch allowed, {sizes[k]}: a lower "
                "learning rate would have its best batch below"
            )
        elif k == 0:
            told = (
                f"the score falls from the smallest batch tried on, {sizes[k]}: a higher learning "
                "rate would have its best batch above"
            )
        return told

    def _suspect(self, rate: float, scores: Array) -> None:
        """Scores that never change betray an argument without effect, or training that fails."""
        self.constant = None
        found = scores[~np.isnan(scores).any(axis=1)]
        if not len(found) or np.ptp(found, axis=1).any():
            return
        note = "the score is the same for every seed: train seems to ignore seed, so the noise is "
        note += "not known and every difference counts"
        if _same(found):
            self.constant = float(found[0, 0])
            note = (
                f"the score is the same for every batch size and seed at learning rate {rate:.3g}: "
            )
            note += "train ignores what it is given, or does not learn"
        self.notes.append(note)
        warnings.warn(note, TuneWarning, stacklevel=6)

    # The stages that follow ---------------------------------------------------------------------

    def _larger(self, via: str) -> AnyRecipe | None:
        """The next recipe; None where the hardware's limit, or the rule's end, leaves no room."""
        assert self.current is not None
        size = min(FACTOR * self.current.batch_size, self.plan.limit)
        if isinstance(self.base, AdamRecipe) and via == "square_root":
            size = min(size, self.base.largest_batch_size)
        if size < _WORTHWHILE * self.current.batch_size:
            return None
        if isinstance(self.base, AdamRecipe):
            # From where this way began, so that the notes say how far it has come since.
            grown = self.base.scaled_to(batch_size=size, rule=via)
            before = _notes_but(self.base, "a batch of ", "beta2 = ")  # which grown says anew
            told = _notes_but(grown, "the batch is ")  # whether it may be larger is tried here
            return replace(grown, notes=(*before, *told))
        assert isinstance(self.current, Recipe)
        scaled = self.current.scaled_to(batch_size=size, via=via)
        return replace(scaled, notes=())  # its own are worked out anew

    def _nearby(self, centre: AnyRecipe) -> list[AnyRecipe]:
        sizes = {round(share * centre.batch_size) for share in _NEARBY} - {centre.batch_size, 0}
        # A Recipe works its notes out anew; an AdamRecipe has them from the way that it grew.
        notes = _notes_but(centre, "a batch of ") if isinstance(centre, AdamRecipe) else ()
        return [
            replace(centre, batch_size=size, notes=notes)
            for size in sorted(sizes)
            if size <= self.plan.limit
        ]

    # ----------------------------------------------------------------------------------------------

    def _leave_out_broken(self) -> None:
        """Never recommend what gave no score in some seed: rather what was taken before it."""
        assert self.current is not None
        if self.current not in self.broken:
            return
        left = [d for d in self.trail if d.recipe not in self.broken]
        told = f"{in_words(self.current)} gave no score in some of its runs"
        if not left:
            raise InputError(
                f"{told}, and so did every recipe that was tried: training is not stable, so there "
                "is nothing to recommend."
            )
        self.notes.append(f"{told}, so it is not recommended")
        taken = [d.recipe for d in left if d.accepted]
        if self.current == self.start or not taken:
            self.unsound = (
                f"{told}, so that larger batches have nothing to be compared with: make training "
                "stable there, or give another learning_rate; of the others this scored best."
            )
            taken = [max(left, key=lambda d: d.score).recipe]
        self.current = taken[-1]

    def _recipe(self, rate: float, size: int) -> AnyRecipe:
        return replace(self.plan.first, learning_rate=rate, batch_size=size, notes=())

    def _scores_at(self, rate: float, sizes: list[int]) -> Array:
        return self._scores([self._recipe(rate, s) for s in sizes], self.plan.seeds)

    def _record(
        self,
        stage: int,
        changed: str,
        recipe: AnyRecipe,
        scores: Array,
        found: Difference | None,
        accepted: bool,
        why: str,
    ) -> None:
        good = scores[~np.isnan(scores)]
        mean = mean_of(good) if len(good) else Estimate(math.nan)
        self.trail.append(
            Decision(
                stage=stage,
                changed=changed,
                recipe=recipe,
                score=mean.value,
                score_std=mean.std,
                difference=None if found is None else found.mean,
                difference_std=None if found is None else found.std,
                n_seeds=len(scores),
                accepted=accepted,
                why=why,
            )
        )
        if why:
            self.progress.decided(f"stage {stage}: {in_words(recipe)}: {why}")

    def _result(self, complete: bool, told: str) -> TuneResult:
        assert self.current is not None
        assert self.start is not None
        before, after = (self.trials.steps(r.batch_size) for r in (self.start, self.current))
        update, example = _time_of_an_update(self.trials)
        return TuneResult(
            recipe=self.current,
            start=self.start,
            complete=complete,
            conclusion=told,
            trail=tuple(self.trail),
            updates_before=before,
            updates_after=after,
            epochs=self.plan.epochs,
            n_runs=self.trials.n_runs,
            n_updates=self.trials.n_steps,
            seconds=self.trials.seconds,
            seconds_per_update=update,
            seconds_per_example=example,
            notes=tuple(dict.fromkeys((*self.notes, *self.current.notes))),
            tolerance=self.plan.tolerance,
        )


def reason(found: Difference, scores: Array, words: dict[str, str]) -> str:
    """Why a recipe was taken or not, in words."""
    if broken := int(np.isnan(scores).sum()):
        return f"training gave no score in {broken} of {len(scores)} seeds"
    if found.n_seeds < 2:
        return f"the reference gave a score in {found.n_seeds} of {len(scores)} seeds: too few"
    return f"{found}: {words[found.finding]}"


def _notes_but(recipe: AnyRecipe, *beginnings: str) -> tuple[str, ...]:
    return tuple(note for note in recipe.notes if not note.startswith(beginnings))


def _same(scores: Array) -> bool:
    """Whether every run of two recipes or more scores the same, where there are scores."""
    found = scores[~np.isnan(scores).any(axis=1)]
    return len(found) > 1 and not np.ptp(found)


def _time_of_an_update(trials: Trials) -> tuple[float, float]:
    """Seconds for an update, and for each of its examples, fitted to all runs."""
    runs = trials.timings()
    if runs.empty:
        return 0.0, 0.0
    per_update = (runs["duration"] / runs["steps"]).to_numpy(float)
    sizes = runs["batch_size"].to_numpy(float)
    A = np.stack([np.ones_like(sizes), sizes], axis=1) / per_update[:, None]  # relative errors
    (update, example), _ = scipy.optimize.nnls(A, np.ones(len(A)))
    return float(update), float(example)
