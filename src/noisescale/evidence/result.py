"""What an evidence computation gives back."""

import math
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from noisescale.errors import InputError
from noisescale.evidence.kind import Kind
from noisescale.evidence.map import MapEstimate
from noisescale.evidence.preflight import Preflight
from noisescale.notebook import Displayed

if TYPE_CHECKING:
    from noisescale.evidence.refine import LaplacePosterior, RefinedEvidence

# Half the Newton decrement is what the cost could still fall, in nats, and so the size of the error
# in the log evidence. A tenth of a nat changes no conclusion.
_STATIONARY = 0.1
_BELIEVABLE = 1.0  # nats of the same, beyond which E is withheld


class NotAMinimumWarning(UserWarning):
    """The point is not a minimum of the cost, so its Laplace evidence needs care."""


_CAUTIONS = {
    Kind.ONE_MODE: "it is that of one mode, which gives no odds of the whole model",
    Kind.NEIGHBOURHOOD: "it is that of a point's neighbourhood, which gives no odds",
    Kind.UNCHECKED: "no gradient was given, so whether this is a minimum was not checked",
}


@dataclass(frozen=True, repr=False)
class Evidence(Displayed):
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
        kind: what kind of evidence it is, and so what may be said with it.
        at: ``check``, ``map`` or ``point``: whether the point was checked, polished, or taken as it
            is.
        conditional_on: how many first examples it is conditional on; None for none. Then every
            part is the difference that the other examples make.
        preflight: what each method was counted to take, and why this one was chosen.
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
    kind: Kind
    at: str
    conditional_on: int | None = None
    preflight: Preflight | None = None
    details: dict[str, Any] = field(default_factory=dict)
    _posterior: "LaplacePosterior | None" = field(default=None, repr=False, compare=False)

    def refine(self, n: int = 1_000, *, seed: int = 0) -> "RefinedEvidence":
        """This evidence, corrected by ``n`` draws from its Gaussian; see ``trusted`` there.

        For linear models, the last layer (``select=``), and whatever else has few parameters.

        >>> import numpy as np, noisescale as ns
        >>> x, y = np.array([[1.0], [2.0], [-1.0], [-2.0]]), np.array([1, 1, 0, 0])
        >>> laplace = ns.log_evidence(lambda w, x: x @ w, np.ones(1), (x, y), prior_precision=1.0,
        ...                           likelihood="bernoulli", at="map")
        >>> abs(laplace.refine(200).log_evidence - laplace.log_evidence) < 0.1
        True
        """
        if self._posterior is None:
            raise InputError(
                "this evidence cannot be refined: it is of log_evidence_from_operator or "
                "conditional, or came out of a file; compute it with log_evidence."
            )
        return self._posterior.refined(self, n, seed)

    @property
    def map(self) -> MapEstimate | None:
        """The MAP that ``at="map"`` went to, None otherwise."""
        found = self.details.get("map")
        return found if isinstance(found, MapEstimate) else None

    @property
    def withheld(self) -> str | None:
        """Why E, Bayes factor, odds and verdict are not given; None if they are."""
        far = self.newton_decrement is not None and self.newton_decrement > 2 * _BELIEVABLE
        if self.at == "point" or not far:
            return None
        where = "after the descent" if self.at == "map" else "here"
        way = "descend further with map_estimate(max_steps=...)"
        if self.at != "map":
            way = "train further" if self.curvature == "operator" else "use at='map'"
        return (
            f"E is withheld: the cost could still fall by {self._half_decrement:.3g} nats {where}, "
            f"so this is not the evidence of a minimum; {way}, or at='point' for the number anyway."
        )

    @property
    def log_bayes_factor(self) -> float | None:
        """Log evidence minus the null model's; above 0 favours the model. None if withheld."""
        if self.log_null is None or self.withheld:
            return None
        return self.log_evidence - self.log_null

    @property
    def log_bayes_factor_full(self) -> float | None:
        """The same with the whole determinant; None unless it is positive definite."""
        if self.log_null is None or self.log_evidence_full is None or self.withheld:
            return None
        return self.log_evidence_full - self.log_null

    @property
    def E(self) -> float | None:  # noqa: N802, the paper's name
        """The paper's log evidence ratio in favour of the null model: minus the Bayes factor."""
        return None if self.log_bayes_factor is None else -self.log_bayes_factor

    @property
    def odds(self) -> str | None:
        """The odds against the null model, in words; None for kinds that do not bear odds."""
        if self.log_bayes_factor is None or not self.kind.bears_odds:
            return None
        return odds_in_words(self.log_bayes_factor, "the model", self.null_model)

    @property
    def null_model(self) -> str:
        """What ``log_null`` is of, in words."""
        return str(self.details.get("null_model", "random guessing"))

    @property
    def verdict(self) -> str | None:
        """What this number says of the model, in words; None if it is withheld."""
        if self.withheld:
            return None
        if self.log_bayes_factor is None:
            return "no null model to compare with"
        if self.odds is not None:
            return self.odds
        favoured = self._favoured(self.log_bayes_factor)
        if self.n_negative and self.log_bayes_factor_full is not None:
            full = self._favoured(self.log_bayes_factor_full)
            if full != favoured:
                favoured += f" by the restricted sum, {full} by the full determinant"
        return f"E favours {favoured}; {_CAUTIONS[self.kind]}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know about this number; empty at a clean minimum."""
        told = [self.details.get("prior_note"), self.withheld, self.details.get("null_note")]
        if self.map is not None:
            told += self.map.notes
        if (first := self.details.get("map_of_first")) is not None:
            told += [f"of the first {self.conditional_on}: {note}" for note in first.notes]
        notes = [str(note) for note in told if note]
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
                f"{self._half_decrement:.3g} nats, so the log evidence is uncertain by about "
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

    @property
    def _half_decrement(self) -> float:
        return (self.newton_decrement or 0.0) / 2

    def _favoured(self, log_bayes_factor: float) -> str:
        return "the model" if log_bayes_factor > 0 else self.null_model

    def to_dict(self) -> dict[str, Any]:
        """Every number by name, without the params of a MAP."""
        details = {
            name: value.to_dict() if isinstance(value, MapEstimate) else value
            for name, value in self.details.items()
        }
        fields = asdict(replace(self, details=details, _posterior=None))
        del fields["_posterior"]
        return fields | {
            "withheld": self.withheld,
            "odds": self.odds,
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
            f"(prior precision {self._prior_in_words()}, {self.curvature}, {self.method}; "
            f"{self.kind})"
        ]
        if self.conditional_on is not None:
            lines[0] += f", given {self.conditional_on:,} others"
        if self.withheld is not None:
            lines.insert(0, f"No verdict. {self.withheld}")
        lines += [f"  {name:<36}{value:>14.6g}" for name, value in rows if value is not None]
        if self.verdict is not None:
            lines.append(f"  {self.verdict}")
        if self.preflight is not None:
            lines.append(f"  method: {self.preflight}")
        lines += [f"  note: {note}" for note in self.notes if note != self.withheld]
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
