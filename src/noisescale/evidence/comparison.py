"""Models of the same data by their evidences: posterior probabilities (equation 4 of the paper).

P(M_a | y) / P(M_b | y) = P(y | M_a) P(M_a) / (P(y | M_b) P(M_b)).
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from noisescale.checks import check_number
from noisescale.errors import InputError
from noisescale.evidence.result import warn_user

_APPROXIMATE = ("kfac", "diagonal")
_UNRESOLVED = 2.0  # standard errors of a difference below which it is not resolved


class ComparisonWarning(UserWarning):
    """The evidences that are compared were not computed alike."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """Posterior probabilities of models that explain the same data.

    Attributes:
        names: of the models, in the order given.
        log_evidences, log_evidence_stds: with their standard errors, 0 where exact.
        probabilities: under the prior odds.
        log_odds: against the most probable model, never positive.
        notes: what a reader must know: differences within their error, unlike methods.
    """

    names: tuple[str, ...]
    log_evidences: tuple[float, ...]
    log_evidence_stds: tuple[float, ...]
    probabilities: tuple[float, ...]
    log_odds: tuple[float, ...]
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> str:
        """The most probable model."""
        return self.names[int(np.argmax(self.log_odds))]

    def to_dict(self) -> dict[str, Any]:
        """Everything by name."""
        return asdict(self) | {"best": self.best}

    def __repr__(self) -> str:
        width = max(5, *map(len, self.names))
        errors = any(self.log_evidence_stds)
        head = f"{'model':<{width}}  log evidence  " + ("std error  " if errors else "")
        lines = [f"{head}probability  log odds against the best"]
        for name, value, std, probability, odds in zip(
            self.names,
            self.log_evidences,
            self.log_evidence_stds,
            self.probabilities,
            self.log_odds,
            strict=True,
        ):
            error = f"{std:>9.2g}  " if errors else ""
            lines.append(
                f"{name:<{width}}  {value:>12.6g}  {error}{probability:>11.4g}  {odds:>10.4g}"
            )
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def compare(
    evidences: Mapping[str, Any], *, prior_odds: Mapping[str, float] | None = None
) -> Comparison:
    """Posterior probabilities of models, from their evidences and, if given, their prior odds.

    ``evidences`` maps names to results with a ``log_evidence`` (or to plain log evidences).
    ``prior_odds`` gives relative prior weights; by default all models are equally likely. Add the
    null model by its ``log_null``.

    >>> print(compare({"linear": -104.2, "network": -101.9}))
    model    log evidence  probability  log odds against the best
    linear         -104.2      0.09112        -2.3
    network        -101.9       0.9089           0
    """
    if not isinstance(evidences, Mapping):
        raise InputError(
            f"compare needs a mapping from names to evidences, got {type(evidences).__name__}."
        )
    if not evidences:
        raise InputError("compare needs at least one model.")
    sizes = {str(e.n_train): None for e in evidences.values() if hasattr(e, "n_train")}
    if len(sizes) > 1:
        raise InputError(
            f"the models were trained on different numbers of examples ({', '.join(sizes)}): "
            "evidences compare models of the same data."
        )
    names = tuple(map(str, evidences))
    logs = [_log_evidence(name, e) for name, e in zip(names, evidences.values(), strict=True)]
    stds = tuple(float(getattr(e, "log_evidence_std", 0.0)) for e in evidences.values())
    weights = _weights(evidences, prior_odds)
    posterior = np.array(logs) + np.log(weights)
    with np.errstate(over="ignore"):  # the odds of models 1e308 nats apart are 0
        log_odds = np.maximum(posterior - posterior.max(), -np.finfo(float).max)
    probabilities = np.exp(log_odds) / np.exp(log_odds).sum()
    unlike = _unlike(evidences)
    if unlike:
        warn_user(unlike, ComparisonWarning)
    return Comparison(
        names,
        tuple(logs),
        stds,
        tuple(probabilities.tolist()),
        tuple(log_odds.tolist()),
        tuple(note for note in (_unresolved(names, log_odds, stds), unlike) if note),
    )


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


def _unresolved(names: tuple[str, ...], log_odds: Any, stds: tuple[float, ...]) -> str:
    """Which models cannot be told from the best by evidences with such standard errors."""
    best = int(np.argmax(log_odds))
    close = [
        name
        for k, (name, odds, std) in enumerate(zip(names, log_odds, stds, strict=True))
        if k != best and (error := math.hypot(std, stds[best])) and -odds < _UNRESOLVED * error
    ]
    if not close:
        return ""
    return (
        f"{', '.join(close)} and {names[best]} differ by less than two standard errors: their "
        "probabilities are not resolved, compute them with a smaller tolerance."
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
