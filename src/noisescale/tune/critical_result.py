"""What branches at several batch sizes have shown, and its picture."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from noisescale.notebook import Displayed
from noisescale.uncertainty import Estimate, finite_only

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Meaning = Literal["same", "worse", "better", "unclear"]


@dataclass(frozen=True)
class BatchOutcome:
    """One batch size.

    Attributes:
        batch_size, learning_rate: of its branches.
        loss: after all examples, over seeds.
        difference: of that loss from the smallest batch size's, paired by seed.
        finding: what the difference means: ``"same"``, ``"worse"``, ``"better"``, ``"unclear"``.
        examples: to the target loss, over seeds; NaN if a branch did not reach it.
    """

    batch_size: int
    learning_rate: float
    loss: Estimate
    difference: Estimate
    finding: Meaning
    examples: Estimate


@dataclass(frozen=True)
class CriticalBatch(Displayed):
    """The critical batch size by direct measurement.

    Attributes:
        critical_batch_size: from examples to the target loss, with Fieller's interval; NaN with a
            lower bound if larger batches were not seen to cost more.
        target_loss: to which examples were counted.
        outcomes: every batch size, in order; the first is the reference.
        n_examples: that every branch saw.
        n_seeds: of every batch size.
        seconds: of training, summed over workers.
        notes: what to know about these numbers.
    """

    critical_batch_size: Estimate
    target_loss: float
    outcomes: tuple[BatchOutcome, ...]
    n_examples: int
    n_seeds: int
    seconds: float
    notes: tuple[str, ...]

    @property
    def same_up_to(self) -> int:
        """The largest batch size up to which no loss per example was seen to be worse."""
        same = self.outcomes[0].batch_size
        for outcome in self.outcomes[1:]:
            if outcome.finding not in ("same", "better"):
                break
            same = outcome.batch_size
        return same

    @property
    def worse_from(self) -> int | None:
        """The smallest batch size that was seen to be worse; None if none was."""
        return next((o.batch_size for o in self.outcomes if o.finding == "worse"), None)

    def plot(
        self, where: "Axes | str | Path | None" = None, *, proxy: Estimate | None = None
    ) -> "Axes":
        """Draw examples to the target loss against the batch size, and the law's line.

        Args:
            where: axes or a file's path.
            proxy: the critical batch size that a watched run said, drawn beside.
        """
        from noisescale.drawing import drawn
        from noisescale.tune.drawing import draw_critical

        return drawn(lambda axes: draw_critical(self, axes, proxy), where)

    def to_dict(self) -> dict[str, Any]:
        """Everything by name, ready for JSON; None for what is not known or not finite."""
        content = asdict(self) | {"same_up_to": self.same_up_to, "worse_from": self.worse_from}
        plain: dict[str, Any] = finite_only(content)
        return plain

    def __repr__(self) -> str:
        b = self.critical_batch_size
        bound = f", at least {b.low:.3g}" if b.low > 0 else ""
        found = str(b) if not math.isnan(b.value) else f"not resolved{bound}"
        worse = "" if self.worse_from is None else f", and is worse from {self.worse_from} on"
        rows = [("batch size", "learning rate", "loss", "against the smallest", "examples")]
        for o in self.outcomes:
            change = "" if o is self.outcomes[0] else f"{o.difference} {o.finding}"
            examples = "" if math.isnan(o.examples.value) else f"{o.examples.value:,.0f}"
            rate = f"{o.learning_rate:.4g}"
            rows.append((str(o.batch_size), rate, str(o.loss), change, examples))
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        return "\n".join(
            [
                f"Critical batch size {found}, from examples to a loss of {self.target_loss:.4g}.",
                f"The loss after {self.n_examples:,} examples is the same up to a batch of "
                f"{self.same_up_to}{worse} ({self.n_seeds} seeds).",
                *(
                    "  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)).rstrip()
                    for row in rows
                ),
                *(f"- {note}" for note in self.notes),
            ]
        )
