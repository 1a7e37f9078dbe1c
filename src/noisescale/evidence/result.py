"""What an evidence computation gives back."""

import math
import os
import sys
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from noisescale.evidence.preflight import Preflight

# Half the Newton decrement is what the cost could still fall, in nats, and so the size of the error
# in the log evidence. A tenth of a nat changes no conclusion.
_STATIONARY = 0.1
_HOME = f"{Path(__file__).parents[1]}{os.sep}"


class NotAMinimumWarning(UserWarning):
    """The point is not a minimum of the cost, so its Laplace evidence needs care."""


def warn_user(message: str, category: type[Warning]) -> None:
    """A warning that points to the line outside of noisescale which led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HOME):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


@dataclass(frozen=True, repr=False)
class Evidence:
    """The Laplace evidence of a model at a point, and the parts it is made of, in nats.

    Attributes:
        log_evidence: -(nll + penalty) + log_occam_factor + log_degeneracy, with the paper's
            restricted sum over non-negative curvatures.
        log_evidence_full: the same with the whole determinant; None unless it is positive definite.
        log_evidence_std: standard error of log_evidence, 1.96 of which to either side are its 95 %
            interval; 0 for the exact methods, and for ``kfac`` and ``diagonal``, whose error is not
            a random one.
        nll: summed negative log-likelihood of the training data.
        penalty: 1/2 sum of prior_precision w^2.
        log_occam_factor: log of the share of the prior that the data leave, never positive.
        log_occam_factor_full: the same with the whole determinant, None likewise.
        log_degeneracy: log of the number of equivalent minima counted; 0 for one.
        log_null: log evidence of the model that gives every class the same probability, or of the
            best constant for regression and counts.
        gradient_norm, newton_decrement: how far from a minimum the point is; half the decrement is
            what the quadratic model says the cost could still fall. None if no gradient was given.
        n_negative, negative_weight: number and summed size (in units of the prior precision) of
            negative curvatures.
        prior_precision: the one precision of all parameters, or a mapping by layer, which may be
            given again as ``prior_precision``; None if they differ within a layer.
        method, curvature: how it was computed.
        preflight: what each method was predicted to take, and why this one was chosen.
        details: what a method reports beside: probes and rounding of ``lanczos``, say, or how the
            prior was chosen.
    """

    log_evidence: float
    log_evidence_full: float | None
    log_evidence_std: float
    nll: float
    penalty: float
    log_occam_factor: float
    log_occam_factor_full: float | None
    log_degeneracy: float
    log_null: float | None
    gradient_norm: float | None
    newton_decrement: float | None
    n_negative: int
    negative_weight: float
    n_train: int
    n_params: int
    prior_precision: float | dict[str, float] | None
    method: str
    curvature: str
    preflight: Preflight | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def log_bayes_factor(self) -> float | None:
        """Log evidence minus the null model's; above 0 favours the model."""
        return None if self.log_null is None else self.log_evidence - self.log_null

    @property
    def log_bayes_factor_full(self) -> float | None:
        """The same with the whole determinant; None unless it is positive definite."""
        if self.log_null is None or self.log_evidence_full is None:
            return None
        return self.log_evidence_full - self.log_null

    @property
    def E(self) -> float | None:  # noqa: N802, the paper's name
        """The paper's log evidence ratio in favour of the null model: minus the Bayes factor."""
        return None if self.log_bayes_factor is None else -self.log_bayes_factor

    @property
    def verdict(self) -> str:
        """The odds against the null model, in words; by both sums where they differ."""
        if self.log_bayes_factor is None:
            return "no null model to compare with"
        null = self.details.get("null_model", "random guessing")
        restricted = odds_in_words(self.log_bayes_factor, "the model", null)
        if self.log_bayes_factor_full is None or not self.n_negative:
            return restricted
        full = odds_in_words(self.log_bayes_factor_full, "the model", null)
        return f"{restricted} by the restricted sum, {full} by the full determinant"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know about this number; empty at a clean minimum."""
        notes = [str(note) for note in (self.details.get("prior_note"),) if note]
        notes += self.details.get("model_notes", ())
        if self.details.get("tolerance_reached") is False:
            notes.append(
                f"the tolerance was not reached with {self.details['n_probes']} probes: the "
                f"standard error is {self.log_evidence_std:.3g} nats; allow more probes."
            )
        if self.method in ("kfac", "diagonal"):
            notes.append(f"{self.method} is an approximation whose error is not known here.")
        return (*notes, *self.notes_on_the_minimum)

    @property
    def notes_on_the_minimum(self) -> tuple[str, ...]:
        """Why the point is not a clean minimum, if it is not."""
        notes = []
        if self.newton_decrement is not None and self.newton_decrement > 2 * _STATIONARY:
            notes.append(
                f"not a minimum: the quadratic model says the cost could still fall by "
                f"{self.newton_decrement / 2:.3g} nats, so the log evidence is uncertain by about "
                "that much; train further, with this prior."
            )
        if self.n_negative:
            count = (
                f"{self.n_negative} of {self.n_params} curvatures are negative (together "
                f"{self.negative_weight:.3g} times the prior precision)"
            )
            if self.log_evidence_full is None:
                notes.append(
                    f"{count}, some beyond the prior: the restricted sum leaves them out, as the "
                    "paper proposes away from minima."
                )
            else:
                notes.append(
                    f"{count}, but the prior outweighs them: log_evidence_full is the Laplace "
                    f"value, {self.log_evidence_full - self.log_evidence:.3g} nats above the "
                    "paper's restricted sum."
                )
        return tuple(notes)

    @property
    def is_minimum(self) -> bool:
        """Whether the cost curves upwards in every direction and has little left to fall."""
        far = self.newton_decrement is not None and self.newton_decrement > 2 * _STATIONARY
        return self.log_evidence_full is not None and not far

    def to_dict(self) -> dict[str, Any]:
        """Every number by name."""
        return asdict(self) | {
            "log_bayes_factor": self.log_bayes_factor,
            "log_bayes_factor_full": self.log_bayes_factor_full,
            "E": self.E,
            "verdict": self.verdict,
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        both = self.n_negative > 0  # else the whole determinant is the restricted sum
        rows = [
            ("fit: summed nll", self.nll),
            ("penalty", self.penalty),
            ("log Occam factor", self.log_occam_factor),
            ("log Occam factor, full determinant", self.log_occam_factor_full if both else None),
            ("log degeneracy", self.log_degeneracy or None),
            ("log evidence", self.log_evidence),
            ("its standard error", self.log_evidence_std or None),
            ("log evidence, full determinant", self.log_evidence_full if both else None),
            ("null model's log evidence", self.log_null),
            ("log Bayes factor", self.log_bayes_factor),
            ("log Bayes factor, full determinant", self.log_bayes_factor_full if both else None),
            ("E (the paper's)", self.E),
            ("gradient norm", self.gradient_norm),
            ("Newton decrement", self.newton_decrement),
        ]
        lines = [
            f"Evidence of {self.n_params:,} parameters from {self.n_train:,} examples "
            f"(prior precision {self._prior_in_words()}, {self.curvature}, {self.method})"
        ]
        lines += [f"  {name:<36}{value:>14.6g}" for name, value in rows if value is not None]
        lines.append(f"  {self.verdict}")
        if self.preflight is not None:
            lines.append(f"  method: {self.preflight}")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _prior_in_words(self) -> str:
        if isinstance(self.prior_precision, dict):
            return "by layer"
        return "per parameter" if self.prior_precision is None else f"{self.prior_precision:g}"


def odds_in_words(log_odds: float, first: str, second: str) -> str:
    """Log odds as a sentence: even, about so many to one, or a power of ten."""
    if abs(log_odds) < math.log(1.1):
        return f"even odds between {first} and {second}"
    winner, loser = (first, second) if log_odds > 0 else (second, first)
    size = abs(log_odds)
    odds = f"{math.exp(size):.3g}" if size < math.log(1e4) else f"10^{size / math.log(10):.1f}"
    return f"odds of {odds} to 1 for {winner} against {loser}"
