"""Appendix E with a margin: the largest batch that is shown to lose no more than a tolerance.

Every comparison is a test of non-inferiority against the best recipe so far. Three things follow
that the rule without a margin lacks. A learning rate at which the score is poor is lowered like one
at which there is none: after stage 1 a third of it is tried at the same batch, and taken as the new
start if the first is shown to be worse by more than the tolerance. Without a peak over batch sizes
a third may be as poor, so then lower ones are tried too. The recommendation is the largest batch of
all that were measured as no worse, whatever stage measured it. And where noise is larger than the
margin, or scores still rise as the learning rate falls, the result says that it is inconclusive,
and what would decide it.
"""

import math
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from noisescale.tune.decide import Difference, seeds_to_decide
from noisescale.tune.procedure import FACTOR, REDUCTIONS, Tuner, reason
from noisescale.tune.result import TuneResult, in_words
from noisescale.tune.scores import AnyRecipe, BudgetSpentError, means

_WORDS = {
    "fell": "loses more than the tolerance",
    "unclear": "may lose more than the tolerance, and more seeds did not tell",
    "held": "no worse, within the tolerance",
    "rose": "better beyond its noise",
}
_PARTS = ("a third", "a ninth", "1/27", "1/81", "1/243")  # of the learning rate, by FACTOR
_MOST_SEEDS = 999  # that are worth naming


@dataclass
class MarginTuner(Tuner):
    """The three stages with a tolerance."""

    unclear: list[tuple[AnyRecipe, Difference]] = field(default_factory=list)
    poor: tuple[str, float] | None = None  # that a lower learning rate is better, and which

    @property
    def tolerance(self) -> float:
        """The loss that is no loss."""
        assert self.plan.tolerance is not None
        return self.plan.tolerance

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
            scores = self.trials.scores([start, below], self.plan.seeds)
            found = self._compare(scores[0], scores[1], 1 if k == 1 else len(parts) - 1)
            better = found.finding == "fell" and not np.isnan(scores).any()
            shown = self._compare(scores[1], scores[0])
            last = better or k == len(parts) or (shown.finding == "fell" and not flat)
            why = f"{shown}: {part} of the learning rate is {'better' if better else 'no better'}"
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
        return all(self._compare(row, best, among).finding != "fell" for row in found)

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
        scores, reference = self._judge(recipe, self.reference)
        found = self._compare(scores, reference)
        accepted = found.finding in ("held", "rose")
        self._record(stage, changed, recipe, scores, found, accepted, reason(found, scores, _WORDS))
        if found.finding == "unclear":
            self.unclear.append((recipe, found))
        if accepted:
            self.current = recipe
            if found.finding == "rose":
                self.reference = recipe
        return accepted

    def _retune(self) -> None:
        """Nearby sizes: larger ones that are no worse, or a smaller one that is better for sure."""
        assert self.current is not None
        centre = self.current
        nearby = self._nearby(centre)
        self.progress.line(f"stage 3: batch sizes near {centre.batch_size}")
        self.trials.scores([centre, *nearby], self.plan.seeds)  # side by side
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
            scores = self.trials.scores([centre, recipe], self.plan.seeds)
            lost = self._compare(scores[0], scores[1])
            taken = lost.finding == "fell"
            gain = self._compare(scores[1], scores[0])
            why = f"{gain}: {'better by more than' if taken else 'not better beyond'} the tolerance"
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
            scores = self.trials.scores([recipe, self.reference], self.plan.seeds)
            # One that lost more at first sight would need luck, not seeds.
            likely = self._compare(scores[0], scores[1]).mean >= -self.tolerance
            if likely and self._try(3, "batch_size", recipe):
                return

    def _result(self, complete: bool, told: str) -> TuneResult:
        if not complete and self.reference is not None:
            with suppress(BudgetSpentError):
                self._recommend()  # of what is measured already
        return super()._result(complete, told)

    def _inconclusive(self) -> str | None:
        assert self.start is not None
        assert self.current is not None
        if self.poor is not None:
            told, rate = self.poor
            return (
                f"{told}: what is best at {self.current.learning_rate:.3g} is not what training "
                f"can reach; give learning_rate={rate:.2g} or less."
            )
        if self.constant is not None:
            return super()._inconclusive()
        if self.unclear and self.current.batch_size <= self.start.batch_size:
            recipe, found = self._most_promising(self.unclear)
            return f"noise hides whether {in_words(recipe)} is worse; {self._would_decide(found)}."
        return None

    def _most_promising(
        self, unclear: list[tuple[AnyRecipe, Difference]]
    ) -> tuple[AnyRecipe, Difference]:
        """The largest batch that seems to be within the tolerance, or else the nearest to it."""
        likely = [pair for pair in unclear if pair[1].mean >= -self.tolerance]
        if likely:
            return max(likely, key=lambda pair: pair[0].batch_size)
        return max(unclear, key=lambda pair: pair[1].mean - pair[1].reach)

    def _would_decide(self, found: Difference) -> str:
        """Seeds or a tolerance with which the same difference would be decided."""
        needed = found.reach - found.mean
        told = f"it scores {found}, and tolerance={_up(needed):g} would hold"
        seeds = seeds_to_decide(found, self.usual, self.tolerance, _MOST_SEEDS)
        if seeds is not None:
            told += f", or about max_seeds={seeds} tell if the difference stays"
        return told

    def _told(self) -> str:
        assert self.start is not None
        assert self.current is not None
        ratio = self.current.batch_size / self.start.batch_size
        if ratio > 1:
            told = f"A batch {ratio:.3g} times as large loses less than {self.tolerance:g}, at 95 %"
        else:
            told = f"No larger batch was shown to lose less than {self.tolerance:g}"
        if self.current.batch_size == self.plan.limit:
            told += ", up to the largest batch allowed"
        beyond = [p for p in self.unclear if p[0].batch_size > self.current.batch_size]
        if beyond and ratio > 1:
            recipe, found = self._most_promising(beyond)
            told += f"; B = {recipe.batch_size} is not decided: {self._would_decide(found)}"
        return told + "."


def _up(value: float) -> float:
    """To two digits, upwards."""
    if value <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit - 1e-9) * unit
