"""The largest batch that is shown to lose no more than a tolerance: appendix E's other stages.

Every comparison is a test of non-inferiority against the best recipe so far. A learning rate at
which the score is poor is lowered like one at which there is none: after stage 1 a third of it is
tried at the same batch, and taken as the new start if the first is shown to be worse by more than
the tolerance. Without a peak over batch sizes a third may be as poor, so then lower ones are tried
too. What is accepted is the largest batch of
all that were measured as no worse, whatever stage measured it. And where noise is larger than the
margin, or scores still rise as the learning rate falls, the result says that it is inconclusive,
and what would decide it.

Each comparison errs in 5 %, the largest batch of many comparisons in more. So what was accepted is
compared once more with the start, on seeds that nothing has seen, at one look of 5 %: first the
batch about half way (in ratio), and if that is no worse the largest. In such a sequence, which ends
at the first that is not shown, 5 % holds for both together; and luck that made the largest look
good does not lead all the way back to the start.
"""

import math
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from noisescale.errors import InputError
from noisescale.tune.comparison import (
    ERROR,
    Array,
    Difference,
    compare,
    error_of_a_look,
    seeds_to_decide,
)
from noisescale.tune.procedure import FACTOR, REDUCTIONS, FirstStage, reason
from noisescale.tune.result import TuneResult, in_words
from noisescale.tune.scores import AnyRecipe, Budget, BudgetSpentError, means

_WORDS = {
    "fell": "probably loses more than the tolerance",
    "unclear": "may lose more than the tolerance, and more seeds did not tell",
    "held": "no worse, within the tolerance",
    "rose": "better beyond its noise",
}
_CONFIRMED = {
    "fell": "not confirmed on fresh seeds, loses more than the tolerance",
    "unclear": "not confirmed on fresh seeds, may lose more than the tolerance",
    "held": "confirmed on fresh seeds, no worse, within the tolerance",
    "rose": "confirmed on fresh seeds, better beyond its noise",
}
_PARTS = ("a third", "a ninth", "1/27", "1/81", "1/243")  # of the learning rate, by FACTOR
_MOST_SEEDS = 999  # that are worth naming


@dataclass
class Tuner(FirstStage):
    """All stages, and what they conclude."""

    refused: list[tuple[AnyRecipe, Difference]] = field(default_factory=list)
    best_seen: AnyRecipe | None = None  # the largest accepted batch, or else the most promising
    confirmed: bool | None = None  # on fresh seeds; None if that was not tried
    unconfirmed: tuple[AnyRecipe, Difference] | None = None  # the first that was not
    poor: tuple[str, float] | None = None  # that a lower learning rate is better, and which

    def run(self) -> TuneResult:
        """All stages, or as many as the budget allows."""
        told, complete = "", True
        try:
            self._find_batch_size()
            if self.constant is None:
                for way in self.plan.ways:
                    self.base = self.current
                    self._grow(way)
                self._retune()
        except BudgetSpentError as spent:
            if self.current is None:
                raise InputError(
                    f"the budget was spent before anything could be decided: {spent}; give it more."
                ) from spent
            told, complete = f"Stopped early: {spent}. ", False
        complete = self._finish(complete) and complete
        self._leave_out_broken()
        told += self._told(complete)
        best = self._most_promising()
        if self.best_seen is None and best is not None:
            self.best_seen = best[0]
        return replace(
            self._result(complete, told),
            inconclusive=self._inconclusive(),
            confirmed=self.confirmed,
            best_seen=self.best_seen,
        )

    def _find_batch_size(self) -> None:
        """Stage 1, at a lower learning rate where the score is poor."""
        for lowered in range(REDUCTIONS + 1):
            super()._find_batch_size()
            assert self.start is not None
            self.poor = None  # what was said of the rate before: the budget may end here
            self.poor = self._better_below(self.start)
            if self.poor is None:
                return
            told, rate = self.poor
            self.notes.append(told)
            self.progress.decided(f"stage 1: {told}; trying {rate:.3g}")
            self.trail = [replace(d, accepted=False) for d in self.trail]
            if lowered < REDUCTIONS:
                self.plan = replace(self.plan, first=replace(self.plan.first, learning_rate=rate))

    def _better_below(self, start: AnyRecipe) -> tuple[str, float] | None:
        """The first lower learning rate that is shown to be better, with words; None if none is.

        A peak over batch sizes shows that training responds: then a third is all that is tried.
        Else one probe follows another, until one is better, or shown to be worse where the batch
        size matters. Those after the first share the 5 % of one.
        """
        parts = _PARTS[:1] if self.resolved else _PARTS
        flat = not self.resolved and self._flat()
        if flat:  # the best observed may be where a run takes longest, or hardly any update
            start = self._recipe(start.learning_rate, self._middle())
        for k, part in enumerate(parts, 1):
            below = replace(start, learning_rate=start.learning_rate / FACTOR**k, notes=())
            self.progress.line(f"stage 1: is a learning rate of {below.learning_rate:.3g} better?")
            scores = self._scores([start, below], self.plan.seeds)
            found = self._compare(*scores, among=1 if k == 1 else len(parts) - 1)
            better = found.finding == "fell" and not np.isnan(scores).any()
            shown = self._compare(scores[1], scores[0])
            last = better or k == len(parts) or (shown.finding == "fell" and not flat)
            told = f"{part} of the learning rate is {'better' if better else 'no better'}"
            why = reason(shown, scores[1], dict.fromkeys(_WORDS, told))
            why += "" if last else f"; no peak is resolved, so {parts[k]} is tried"
            self._record(1, "learning_rate", below, scores[1], shown, False, why)
            if better:
                told = f"{part} of the learning rate {start.learning_rate:.3g} scores "
                return f"{told}{-found.mean:.3g} ± {found.std:.2g} more", below.learning_rate
            if last:
                break
        if flat:
            self.notes.append(
                f"at learning rate {start.learning_rate:.3g} the score was not seen to depend on "
                f"the batch size, and no rate down to {below.learning_rate:.3g} is better: make "
                "sure that it is above chance"
            )
        return None

    def _flat(self) -> bool:
        """Whether no batch size of stage 1 is shown to lose more than the tolerance."""
        found = self.scores[~np.isnan(self.scores).any(axis=1)]
        best = found[means(found).argmax()]
        among = max(1, len(found) - 1)
        return all(self._compare(row, best, among=among).finding != "fell" for row in found)

    def _middle(self) -> int:
        """Of the batch sizes that gave scores."""
        found = zip(self.sizes, means(self.scores), strict=True)
        sizes = [size for size, mean in found if mean > -math.inf]
        return sizes[len(sizes) // 2]

    def _grow(self, via: str) -> None:
        """Batches three times as large, as long as they are shown to be no worse."""
        while (larger := self._larger(via)) is not None:
            self.progress.line(f"stage 2: B = {larger.batch_size}, {via.replace('_', ' ')} with it")
            if not self._try(2, via, larger):
                return

    def _try(self, stage: int, changed: str, recipe: AnyRecipe) -> bool:
        """Whether ``recipe`` is no worse than the reference, and so the current one."""
        assert self.reference is not None
        self._hold_back(recipe)
        scores, found = self._judge(recipe, self.reference)
        accepted = found.finding in ("held", "rose")
        self._record(stage, changed, recipe, scores, found, accepted, reason(found, scores, _WORDS))
        if not accepted:
            self.refused.append((recipe, found))
        if accepted:
            self.current = recipe
            if found.finding == "rose":
                self.reference = recipe
        return accepted

    def _judge(self, candidate: AnyRecipe, reference: AnyRecipe) -> tuple[Array, Difference]:
        """Scores of the candidate, and how it compares, with more seeds while that is close."""
        for n in self.plan.looks:
            scores = self._scores([candidate, reference], n)
            found = self._compare(*scores, alpha=error_of_a_look(self.plan.looks))
            if found.finding != "unclear":
                break
        return scores[0], found

    def _compare(
        self, scores: Array, reference: Array, *, alpha: float = ERROR, among: int = 1
    ) -> Difference:
        tau = self.plan.tolerance
        return compare(scores, reference, tau, usual=self.usual, alpha=alpha, among=among)

    def _retune(self) -> None:
        """Nearby sizes: larger ones that are no worse, or a smaller one that is better for sure."""
        assert self.current is not None
        centre = self.current
        nearby = self._nearby(centre)
        self.progress.line(f"stage 3: batch sizes near {centre.batch_size}")
        self._hold_back()
        self._scores([centre, *nearby], self.plan.seeds)  # side by side
        for recipe in (r for r in reversed(nearby) if r.batch_size > centre.batch_size):
            if self._try(3, "batch_size", recipe):
                break
        if self.current is centre:
            self._look_below(centre, [r for r in nearby if r.batch_size < centre.batch_size])
        self._recommend()

    def _look_below(self, centre: AnyRecipe, smaller: list[AnyRecipe]) -> None:
        """Move to a smaller batch only if that shows the centre to lose more than the tolerance."""
        best: tuple[float, AnyRecipe] | None = None
        for recipe in smaller:
            scores = self._scores([centre, recipe], self.plan.seeds)
            lost = self._compare(scores[0], scores[1])
            taken = lost.finding == "fell" and not np.isnan(scores).any()
            gain = self._compare(scores[1], scores[0])
            told = f"{'better by more than' if taken else 'not better beyond'} the tolerance"
            why = reason(gain, scores[1], dict.fromkeys(_WORDS, told))
            self._record(3, "batch_size", recipe, scores[1], gain, taken, why)
            if taken and (best is None or gain.mean > best[0]):
                best = gain.mean, recipe
        if best is not None:
            self.current = self.reference = best[1]

    def _recommend(self) -> None:
        """The largest batch of all measured that is no worse: stage 1 measured some too."""
        assert self.current is not None
        assert self.reference is not None
        judged = [d.recipe for d in self.trail if d.difference is not None]
        larger = [
            d.recipe
            for d in self.trail
            if d.recipe.batch_size > self.current.batch_size and d.recipe not in judged
        ]
        for recipe in sorted(larger, key=lambda r: r.batch_size, reverse=True):
            scores = self._scores([recipe, self.reference], self.plan.seeds)
            # One that lost more at first sight would need luck, not seeds.
            likely = self._compare(scores[0], scores[1]).mean >= -self.plan.tolerance
            if likely and self._try(3, "batch_size", recipe):
                return

    # Stage 4 ------------------------------------------------------------------------------------

    def _accepted(self) -> list[AnyRecipe]:
        """What is larger than the start, up to the current batch, by size."""
        assert self.start is not None
        assert self.current is not None
        first, last = self.start.batch_size, self.current.batch_size
        taken = {d.recipe.batch_size: d.recipe for d in self.trail if d.accepted and d.stage > 1}
        sizes = [size for size in sorted(taken) if first < size <= last]
        return [taken[size] for size in sizes if taken[size] not in self.broken]

    def _to_confirm(self, *candidate: AnyRecipe) -> list[AnyRecipe]:
        """The largest of what is accepted and of a candidate, after what is half way to it."""
        assert self.start is not None
        grown = [*self._accepted(), *candidate]
        if len(grown) < 2:
            return grown
        middle = math.sqrt(self.start.batch_size * grown[-1].batch_size)
        return [min(grown[:-1], key=lambda r: abs(math.log(r.batch_size / middle))), grown[-1]]

    def _hold_back(self, *candidate: AnyRecipe) -> None:
        """Keep as much of the budget as it takes to confirm what is accepted, or a candidate."""
        assert self.start is not None
        compared = self._to_confirm(*candidate)
        seeds = self.plan.max_seeds * self.plan.confirm
        sizes = [recipe.batch_size for recipe in (self.start, *compared) if compared]
        steps = sum(self.trials.steps(size) for size in sizes)
        self.trials.held_back = Budget(runs=seeds * len(sizes), steps=seeds * steps)

    def _finish(self, complete: bool) -> bool:
        """What was accepted against the start on fresh seeds; whether the budget was enough."""
        if self.reference is None or self.start is None:
            return complete
        if not complete:
            with suppress(BudgetSpentError):
                self._recommend()  # of what is measured already
        compared = self._to_confirm()
        if not compared:
            return complete
        self.best_seen = compared[-1]
        if not self.plan.confirm:
            return complete
        self.current, self.confirmed = self.start, False
        self.trials.held_back = Budget(runs=0, steps=0)
        n = self.plan.max_seeds
        for recipe in compared:
            self.progress.line(f"stage 4: B = {recipe.batch_size} on {n} fresh seeds")
            try:
                scores = self._scores([recipe, self.start], n, skip=n)
            except BudgetSpentError:
                return False
            found = self._compare(*scores)
            held = found.finding in ("held", "rose")
            why = reason(found, scores[0], _CONFIRMED)
            self._record(4, "seeds", recipe, scores[0], found, held, why)
            if not held:
                self.unconfirmed = recipe, found
                break
            self.current, self.confirmed = recipe, True
        return complete

    # ----------------------------------------------------------------------------------------------

    def _inconclusive(self) -> str | None:
        assert self.start is not None
        assert self.current is not None
        if self.poor is not None:
            told, rate = self.poor
            return (
                f"{told}: what is best at {self.current.learning_rate:.3g} is not what training "
                f"can reach; give learning_rate={rate:.2g} or less."
            )
        if self.unsound is not None:
            return self.unsound
        if self.constant is not None:
            return (
                f"the score is {self.constant:.4g} for every batch size and seed at learning rate "
                f"{self.start.learning_rate:.3g}, so that none can be told from another; make sure "
                "that train uses what it is given and that this is neither chance nor the best "
                "score there is, and give another learning_rate."
            )
        if self.confirmed is False:
            return f"{self._not_confirmed()}."
        best = self._most_promising()
        if self.current.batch_size <= self.start.batch_size and best is not None:
            recipe, found = best
            if found.finding == "unclear":
                decide = self._would_decide(found)
                return f"noise hides whether {in_words(recipe)} is worse; {decide}."
        return None

    def _most_promising(self) -> tuple[AnyRecipe, Difference] | None:
        """Of what was refused beyond the current batch.

        The largest that seems to be within the tolerance, or else the nearest to it, rather one
        that is not decided than one that seems to lose more.
        """
        assert self.current is not None
        pairs = [
            (recipe, found)
            for recipe, found in self.refused
            if recipe.batch_size > self.current.batch_size and recipe not in self.broken
        ]
        open_yet = [pair for pair in pairs if pair[1].finding == "unclear"]
        if likely := [pair for pair in open_yet if pair[1].mean >= -self.plan.tolerance]:
            return max(likely, key=lambda pair: pair[0].batch_size)
        return max(open_yet or pairs, key=lambda p: p[1].mean - p[1].reach, default=None)

    def _would_decide(self, found: Difference, *, fresh: bool = False) -> str:
        """Seeds or a tolerance with which the same difference would be decided."""
        if found.n_seeds < 2:
            return f"the reference gave a score in {found.n_seeds} of its seeds alone: too few"
        told = f"it scores {found}, and tolerance={_up(found.reach - found.mean):g} would hold"
        first = None if fresh else self.plan.seeds
        seeds = seeds_to_decide(found, self.plan.tolerance, _MOST_SEEDS, first=first)
        if seeds is not None and found.finding == "unclear":
            told += f", or about max_seeds={seeds} tell if the difference stays"
        return told

    def _not_confirmed(self) -> str:
        """What was accepted and is not recommended, and why."""
        assert self.best_seen is not None
        told = f"{in_words(self.best_seen)} was accepted, but "
        if self.unconfirmed is None:
            return told + "the budget did not reach to confirm it on fresh seeds"
        recipe, found = self.unconfirmed
        who = "" if recipe == self.best_seen else f"B = {recipe.batch_size} on the way there "
        why = self._would_decide(found, fresh=True)
        if recipe in self.broken:
            why = "training gave no score in some of them"
        return f"{told}{who}is not confirmed on {self.plan.max_seeds} fresh seeds: {why}"

    def _told(self, complete: bool) -> str:
        assert self.start is not None
        assert self.current is not None
        if self.constant is not None and complete:
            return "No larger batch was tried: a score that never changes tells none apart."
        if self.constant is not None:
            return "This is the best recipe so far."
        ratio = self.current.batch_size / self.start.batch_size
        times = f"A batch {ratio:.3g} times as large"
        if self.confirmed:
            told = f"{times} loses less than {self.plan.tolerance:g}, at 95 %, on "
            told += f"{self.plan.max_seeds} fresh seeds"
        elif ratio > 1:
            told = (
                f"{times} seems to lose less than {self.plan.tolerance:g}: each comparison errs in "
            )
            told += "5 %, the largest of many in more, and no fresh seeds confirm it"
        elif complete or self.best_seen is not None:
            told = f"No larger batch was shown to lose less than {self.plan.tolerance:g}"
        else:
            told = "This is the best recipe so far"
        if self.current.batch_size == self.plan.limit:
            told += ", up to the largest batch allowed"
        if self._inconclusive() is not None:
            return f"{told}."  # which says the rest
        if self.best_seen is not None and self.best_seen.batch_size > self.current.batch_size:
            told += f"; {self._not_confirmed()}"
        elif (best := self._most_promising()) is not None:
            recipe, found = best
            if found.finding == "unclear":
                told += f"; B = {recipe.batch_size} is not decided: {self._would_decide(found)}"
            elif ratio <= 1:
                told += f"; {in_words(recipe)} came nearest: {self._would_decide(found)}"
        return f"{told}."


def _up(value: float) -> float:
    """To two digits, upwards."""
    if value <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit - 1e-9) * unit
