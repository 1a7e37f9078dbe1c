"""Models of the same data by their evidences: posterior probabilities (equation 4 of the paper).

P(M_a | y) / P(M_b | y) = P(y | M_a) P(M_a) / (P(y | M_b) P(M_b)).
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from noisescale.checks import check_number
from noisescale.errors import InputError, warn_user
from noisescale.evidence.kind import Kind
from noisescale.notebook import Displayed

_APPROXIMATE = ("kfac", "diagonal")
_UNRESOLVED = 2.0  # standard errors of a difference below which it is not resolved


class ComparisonWarning(UserWarning):
    """The evidences that are compared were not computed alike."""


# Evidences within a set may be compared: those of whole models, those of single modes (a linear
# model has no other). A point's neighbourhood, a curvature from outside and a training procedure
# are things of their own.
_COMPARABLE = (
    {Kind.LINEAR, Kind.REFINED, Kind.ANNEALED},
    {Kind.LINEAR, Kind.ONE_MODE},
    {Kind.NEIGHBOURHOOD},
    {Kind.UNCHECKED},
    {Kind.PREQUENTIAL},
)


@dataclass(frozen=True, repr=False)
class Comparison(Displayed):
    """Posterior probabilities of models that explain the same data.

    Attributes:
        names: of the models, in the order given.
        ranks: 0 for the most probable.
        log_evidences, log_evidence_stds: with their standard errors, 0 where exact.
        probabilities: under the prior odds; also called weights.
        log_odds: against the most probable model, never positive.
        log_odds_stds: the standard error of that difference; NaN where it is not known.
        warnings: what casts doubt on a model's row; empty if nothing does.
        notes: what a reader must know: differences within their error, unlike methods.
    """

    names: tuple[str, ...]
    ranks: tuple[int, ...]
    log_evidences: tuple[float, ...]
    log_evidence_stds: tuple[float, ...]
    probabilities: tuple[float, ...]
    log_odds: tuple[float, ...]
    log_odds_stds: tuple[float, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> str:
        """The most probable model."""
        return self.names[self.ranks.index(0)]

    def to_dict(self) -> dict[str, Any]:
        """Everything by name; None for an error that is not known."""
        errors = tuple(None if math.isnan(std) else std for std in self.log_odds_stds)
        return asdict(self) | {"log_odds_stds": errors, "best": self.best}

    def _headline(self) -> str:
        best = self.probabilities[self.ranks.index(0)]
        return f"The most probable of {len(self.names)} models is {self.best} ({best:.3g})"

    def __repr__(self) -> str:
        width = max(5, *map(len, self.names))
        lines = [
            f"{'model':<{width}}  rank  log evidence  difference  its error    weight  warning"
        ]
        for k in sorted(range(len(self.names)), key=self.ranks.__getitem__):
            lines.append(
                f"{self.names[k]:<{width}}  {self.ranks[k]:>4}  {self.log_evidences[k]:>12.6g}  "
                f"{self.log_odds[k]:>10.4g}  {self.log_odds_stds[k]:>9.2g}  "
                f"{self.probabilities[k]:>8.3g}  {self.warnings[k]}".rstrip()
            )
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def compare(
    evidences: Mapping[str, Any], *, prior_odds: Mapping[str, float] | None = None
) -> Comparison:
    """Posterior probabilities of models, from their evidences and, if given, their prior odds.

    ``evidences`` maps names to results with a ``log_evidence`` (or to plain log evidences), all of
    one kind, or of kinds that mean the same: whole models (linear, refined, annealed), single modes
    (linear, one mode). ``prior_odds`` gives relative prior weights; by default all models are
    equally likely. Add the null model by its ``log_null``.

    >>> print(compare({"linear": -104.2, "network": -101.9}))
    model    rank  log evidence  difference  its error    weight  warning
    network     0        -101.9           0          0     0.909
    linear      1        -104.2        -2.3          0    0.0911
    """
    if not isinstance(evidences, Mapping):
        raise InputError(
            f"compare needs a mapping from names to evidences, got {type(evidences).__name__}."
        )
    if not evidences:
        raise InputError("compare needs at least one model.")
    _check_data(evidences)
    _check_kinds(evidences)
    names = tuple(map(str, evidences))
    logs = [_log_evidence(name, e) for name, e in zip(names, evidences.values(), strict=True)]
    stds = tuple(map(_std, evidences.values()))
    posterior = np.array(logs) + np.log(_weights(evidences, prior_odds))
    with np.errstate(over="ignore"):  # the odds of models 1e308 nats apart are 0
        log_odds = np.maximum(posterior - posterior.max(), -np.finfo(float).max)
    probabilities = np.exp(log_odds) / np.exp(log_odds).sum()
    best = int(np.argmax(log_odds))
    errors = _errors(list(evidences.values()), stds, best)
    unlike = _unlike(evidences)
    unresolved = _unresolved(names, log_odds, errors, _way_out(evidences))
    if unlike:
        warn_user(unlike, ComparisonWarning)
    return Comparison(
        names,
        tuple(np.argsort(np.argsort(-log_odds, kind="stable")).tolist()),
        tuple(logs),
        stds,
        tuple(probabilities.tolist()),
        tuple(log_odds.tolist()),
        errors,
        tuple(map(_doubt, evidences.values(), log_odds, errors)),
        tuple(note for note in (unresolved, unlike) if note),
    )


def _std(evidence: Any) -> float:
    """The standard error of a log evidence."""
    return float(getattr(evidence, "log_evidence_std", 0.0))


def _errors(evidences: list[Any], stds: tuple[float, ...], best: int) -> tuple[float, ...]:
    """The standard error of each difference from the best: paired, where evidences can be."""
    if all(hasattr(evidence, "minus") for evidence in evidences):
        # Of one order alone the error is not known.
        return tuple(
            0.0 if k == best else evidence.minus(evidences[best]).std
            for k, evidence in enumerate(evidences)
        )
    return tuple(0.0 if k == best else math.hypot(std, stds[best]) for k, std in enumerate(stds))


def _check_data(evidences: Mapping[str, Any]) -> None:
    sizes = {str(e.n_train): None for e in evidences.values() if hasattr(e, "n_train")}
    if len(sizes) > 1:
        raise InputError(
            f"the models were trained on different numbers of examples ({', '.join(sizes)}): "
            "evidences compare models of the same data."
        )
    given = {
        str(e.conditional_on): None for e in evidences.values() if hasattr(e, "conditional_on")
    }
    if len(given) > 1:
        raise InputError(
            f"the evidences are conditional on different numbers of examples ({', '.join(given)}): "
            "compute all of them with one conditional_on."
        )


def _check_kinds(evidences: Mapping[str, Any]) -> None:
    for name, evidence in evidences.items():
        if getattr(evidence, "withheld", None):
            raise InputError(f"{name} is not to be compared: {evidence.withheld}")
    kinds = {name: Kind(e.kind) for name, e in evidences.items() if hasattr(e, "kind")}
    if not any(set(kinds.values()) <= group for group in _COMPARABLE):
        told = ", ".join(f"{name}: {kind}" for name, kind in kinds.items())
        raise InputError(
            f"evidences of different kinds are not compared ({told}): compute all of them alike."
        )


def _doubt(evidence: Any, log_odds: float, error: float) -> str:
    """What casts doubt on one row, in a word or two."""
    doubts = ["one order"] if math.isnan(error) else []
    if log_odds < 0 and error and -log_odds < _UNRESOLVED * error:
        doubts.append("not resolved")
    if getattr(evidence, "method", None) in _APPROXIMATE:
        doubts.append(f"{evidence.method} only")
    kind = getattr(evidence, "kind", None)
    if kind in (Kind.ONE_MODE, Kind.NEIGHBOURHOOD, Kind.UNCHECKED):
        doubts.append(str(kind))
    return ", ".join(doubts)


def _log_evidence(name: str, evidence: Any) -> float:
    value = getattr(evidence, "log_evidence", evidence)
    return check_number(f"the log evidence of {name[:40]}", value, "", lambda v: True)


def _weights(evidences: Mapping[str, Any], prior_odds: Any) -> Any:
    if prior_odds is None:
        return np.ones(len(evidences))
    if not isinstance(prior_odds, Mapping) or set(prior_odds) != set(evidences):
        raise InputError(f"prior_odds must name the same models: {', '.join(map(str, evidences))}.")
    return np.array(
        [
            check_number("prior_odds", prior_odds[name], "above 0", lambda v: v > 0)
            for name in evidences
        ]
    )


def _way_out(evidences: Mapping[str, Any]) -> str:
    """What makes the errors of such evidences smaller."""
    if any(getattr(e, "kind", None) is Kind.PREQUENTIAL for e in evidences.values()):
        return "bet on more orders"
    return "compute them with a smaller tolerance"


def _unresolved(
    names: tuple[str, ...], log_odds: Any, errors: tuple[float, ...], way_out: str
) -> str:
    """Which models cannot be told from the best by evidences with such standard errors."""
    best = int(np.argmax(log_odds))
    close = [
        name
        for k, (name, odds, error) in enumerate(zip(names, log_odds, errors, strict=True))
        if k != best and error and -odds < _UNRESOLVED * error
    ]
    if not close:
        return ""
    return (
        f"{', '.join(close)} and {names[best]} differ by less than two standard errors: their "
        f"probabilities are not resolved, {way_out}."
    )


def _unlike(evidences: Mapping[str, Any]) -> str:
    """A sentence if approximations stand beside exact values, or two curvatures."""
    methods = {e.method for e in evidences.values() if hasattr(e, "method")}
    curvatures = {e.curvature for e in evidences.values() if hasattr(e, "curvature")}
    approximate = sorted(methods & set(_APPROXIMATE))
    if approximate and len(methods) > 1:
        return (
            f"the evidences were computed by {', '.join(sorted(methods))}, and approximations "
            f"({', '.join(approximate)}) may be off by far more than these differences: compute "
            "all of them by one method."
        )
    if {"ggn", "hessian"} <= curvatures:
        return "some evidences use the Gauss-Newton matrix, some the Hessian: use one curvature."
    return ""
