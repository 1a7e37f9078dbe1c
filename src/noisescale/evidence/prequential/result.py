"""What betting on the next block gives back."""

import math
import operator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import logsumexp

from noisescale.errors import InputError
from noisescale.evidence.kind import Kind
from noisescale.evidence.prequential.mixture import mix
from noisescale.evidence.result import odds_in_words
from noisescale.notebook import Displayed
from noisescale.plain import from_plain
from noisescale.saved import read_saved, write_saved
from noisescale.uncertainty import Estimate, mean_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
SAVED = "noisescale prequential evidence"
_LARGEST = 1e100  # of a loss that is known
_HEAVY = 0.5  # weight at which an expert is said to have won


@dataclass(frozen=True, eq=False, repr=False)
class PrequentialEvidence(Displayed):
    """The evidence of a training procedure, by betting on each block before seeing it; in nats.

    Attributes:
        log_null: the null model's log evidence of all targets.
        ends: the number of examples seen after each block; the first block pays the null.
        losses: (orders, blocks after the first, experts): what each expert pays; the experts are
            the ``temperatures``, then the null model if it bets (``null_expert``).
        null_losses: (orders, blocks): what the null model pays, the first block included.
        scores: (orders, blocks after the first): accuracy, or root mean square error.
        temperatures, null_expert, null, ensemble, seed: as asked for.
        n_train, n_classes: N, and K (None for real targets).
        null_note: that the null model is beaten too easily, where classes are imbalanced.
    """

    log_null: float
    ends: tuple[int, ...]
    losses: Array
    null_losses: Array
    scores: Array
    temperatures: tuple[float, ...]
    null_expert: bool
    null: str
    ensemble: int
    seed: int
    n_train: int
    n_classes: int | None
    null_note: str | None = None

    kind = Kind.PREQUENTIAL
    log_evidence_std = 0.0  # the mixture over the declared orders is what it is

    @property
    def n_orders(self) -> int:
        """How many orders of the examples were bet on."""
        return len(self.losses)

    @property
    def log_evidences(self) -> Array:
        """The log evidence of each order (orders,)."""
        return -np.array([row.sum() for row in self._paid()])

    @property
    def log_evidence(self) -> float:
        """Of the mixture over orders: the log of the mean evidence, exactly."""
        return float(logsumexp(self.log_evidences) - math.log(self.n_orders))

    @property
    def log_bayes_factor(self) -> float:
        """Log evidence minus the null model's; above 0 favours the procedure."""
        return self.log_evidence - self.log_null

    @property
    def E(self) -> float:  # noqa: N802, the paper's name
        """The paper's log evidence ratio in favour of the null model: minus the Bayes factor."""
        return -self.log_bayes_factor

    @property
    def E_of_orders(self) -> Estimate:  # noqa: N802
        """The mean of E over orders, with an interval by Student's t."""
        return mean_of(self.log_null - self.log_evidences).interval()

    @property
    def odds(self) -> str:
        """For the procedure against the null model, in words: calibrated by construction."""
        return odds_in_words(self.log_bayes_factor, "the procedure", f"the null ({self.null})")

    @property
    def verdict(self) -> str:
        """What this number says: its odds."""
        return self.odds

    @property
    def weights(self) -> Array:
        """(orders, experts): how much each expert is believed after all blocks."""
        return np.array([mix(losses).weights[-1] for losses in self.losses])

    @property
    def table(self) -> pd.DataFrame:
        """A row a block and order: what was seen before it, what was paid, and what was known.

        ``loss`` and ``null_loss`` are nats an example; ``temperature`` is the likeliest before the
        block, ``null_weight`` the belief in the null model then.
        """
        rows = []
        score = "accuracy" if self.n_classes is not None else "rmse"
        starts = (0, *self.ends[:-1])
        for order, paid in enumerate(self._paid()):
            weights = mix(self.losses[order]).weights
            for block, (start, stop) in enumerate(zip(starts, self.ends, strict=True)):
                n = stop - start
                known = weights[max(block - 1, 0)]
                likeliest = int(np.argmax(known[: len(self.temperatures)]))
                rows.append(
                    {
                        "order": order,
                        "n_seen": start,
                        "n_paid": n,
                        "loss": paid[block] / n,
                        "null_loss": self.null_losses[order, block] / n,
                        score: self.scores[order, block - 1] if block else math.nan,
                        "temperature": self.temperatures[likeliest] if block > 1 else math.nan,
                        "null_weight": known[-1] if self.null_expert else 0.0,
                    }
                )
        return pd.DataFrame(rows)

    @property
    def learning_curve(self) -> pd.DataFrame:
        """By the number of examples seen, means over orders of what the next block cost."""
        table = self.table[self.table["n_seen"] > 0]
        grouped = table.drop(columns=["order", "temperature"]).groupby("n_seen")
        curve = grouped.mean()
        spread = grouped["loss"].std() / math.sqrt(self.n_orders)
        curve.insert(2, "loss_std", spread)
        return curve.reset_index()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know about this number."""
        notes, weights = [], self.weights.mean(axis=0)
        if self.null_note is not None:
            notes.append(self.null_note)
        if self.null_expert and weights[-1] > _HEAVY:
            notes.append(
                "the null model predicts better than the procedure at every temperature, so E "
                f"stays near ln {len(weights)}, what the mixture costs."
            )
        hottest = len(self.temperatures) - 1
        if hottest and weights[hottest] > _HEAVY:
            notes.append(
                f"the highest temperature, {self.temperatures[-1]:g}, is believed most: try higher "
                "ones, predictions are far too certain."
            )
        if self.n_orders < 2:
            notes.append("one order alone: how much E depends on it is not known.")
        return tuple(notes)

    def minus(self, other: "PrequentialEvidence") -> Estimate:
        """Log evidence of this procedure minus another's, paired by order, with its interval.

        Both must have been bet on the same blocks and orders of the same targets.
        """
        mine, theirs = (
            (e.seed, e.n_orders, e.ends, e.null, e.n_train, e.log_null) for e in (self, other)
        )
        if mine != theirs:
            raise InputError(
                "prequential evidences can be paired by order only with the same data, seed, "
                f"orders, blocks and null, got seeds {self.seed} and {other.seed}, "
                f"{self.n_orders} and {other.n_orders} orders, blocks that end at {self.ends} and "
                f"{other.ends}, nulls {self.null} and {other.null}."
            )
        return mean_of(self.log_evidences - other.log_evidences).interval()

    def plot(self, where: "Axes | str | Path | None" = None) -> "Axes":
        """The learning curve, nats paid an example against examples seen, a line an order.

        Into ``where``: axes or a file's path.
        """
        from noisescale.drawing import drawn
        from noisescale.evidence.prequential.drawing import draw_curve

        return drawn(partial(draw_curve, self), where)

    def save(self, path: Path | str) -> None:
        """Write it into a ``.json`` file, for `noisescale report`; `load` reads it again."""
        write_saved(path, SAVED, self)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """The evidence that `save` wrote."""
        return read_saved(path, SAVED, cls._of_plain)

    @classmethod
    def _of_plain(cls, plain: Any) -> Self:
        """With the shapes and the sizes that bets have; losses alone may be infinite."""
        made: Self = from_plain(cls, plain)
        orders, blocks, starts = len(made.losses), len(made.ends), (0, *made.ends[:-1])
        experts = len(made.temperatures) + made.null_expert
        shapes = {
            "losses": (orders, blocks - 1, experts),
            "null_losses": (orders, blocks),
            "scores": (orders, blocks - 1),
        }
        for name, shape in shapes.items():
            values = getattr(made, name)
            if values.shape != shape or 0 in shape:
                raise ValueError(f"field {name}: it has shape {values.shape}, not {shape}")
            open_to = {"losses": values == np.inf, "scores": np.isnan(values)}
            known = values[~open_to.get(name, np.zeros(shape, bool))]
            if not (np.abs(known) <= _LARGEST).all():
                raise ValueError(f"field {name}: a loss or score is a number of sensible size")
        if not (made.ends[-1] == made.n_train and all(map(operator.lt, starts, made.ends))):
            raise ValueError(f"field ends: blocks do not go on to {made.n_train} examples")
        if not (abs(made.log_null) < _LARGEST and all(0 < T < _LARGEST for T in made.temperatures)):
            raise ValueError("field temperatures or log_null: a number has no sensible size")
        return made

    def to_dict(self) -> dict[str, Any]:
        """Every number by name."""
        return {
            "kind": self.kind.value,
            "log_evidence": self.log_evidence,
            "log_null": self.log_null,
            "log_bayes_factor": self.log_bayes_factor,
            "E": self.E,
            "E_of_orders": self.E_of_orders.to_dict(),
            "odds": self.odds,
            "verdict": self.verdict,
            "log_evidences": self.log_evidences.tolist(),
            "weights": self.weights.tolist(),
            "ends": list(self.ends),
            "temperatures": list(self.temperatures),
            "null_expert": self.null_expert,
            "null": self.null,
            "ensemble": self.ensemble,
            "seed": self.seed,
            "n_train": self.n_train,
            "n_classes": self.n_classes,
            "table": self.table.replace({math.nan: None}).to_dict("records"),
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        orders = f"{self.n_orders} order{'s' if self.n_orders > 1 else ''}"
        lines = [
            f"Prequential evidence of a training procedure from {self.n_train:,} examples "
            f"({orders}, {len(self.ends)} blocks, null {self.null})"
        ]
        rows = [
            ("log evidence", self.log_evidence),
            ("null model's log evidence", self.log_null),
            ("log Bayes factor", self.log_bayes_factor),
            ("E (the paper's)", self.E),
        ]
        lines += [f"  {name:<36}{value:>14.6g}" for name, value in rows]
        if self.n_orders > 1:
            lines.append(f"  {'E, mean over orders':<36}{self.E_of_orders!s:>14}")
        lines.append(f"  {self.verdict}")
        score = "accuracy" if self.n_classes is not None else "rmse"
        lines.append(f"  {'seen':>8}{'paid for':>10}{'loss':>9}{'null':>9}{score:>10}")
        for row in self.learning_curve.to_dict("records"):
            lines.append(
                f"  {row['n_seen']:>8.0f}{row['n_paid']:>10.0f}{row['loss']:>9.4g}"
                f"{row['null_loss']:>9.4g}{row[score]:>10.4g}"
            )
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def _paid(self) -> list[Array]:
        """What each order pays for each block, the first by the null model."""
        return [
            np.concatenate([null[:1], mix(losses).losses])
            for null, losses in zip(self.null_losses, self.losses, strict=True)
        ]
