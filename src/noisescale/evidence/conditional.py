"""The evidence of some data given others (Lotfi et al. 2022):

    ln P(y_rest | y_first) = ln P(y_all) - ln P(y_first),

two Laplace evidences, each at its own MAP, with the same prior. The first examples pay for what the
prior leaves open, so that less depends on the prior and more on what was learnt.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from noisescale.checks import check_whole
from noisescale.errors import InputError
from noisescale.evidence.kind import Kind
from noisescale.evidence.problem import Problem
from noisescale.evidence.result import Evidence


def conditional_evidence(
    problem: Problem,
    n_first: int,
    prior_precision: Any,
    evidence: Callable[..., Evidence],
    settings: dict[str, Any],
) -> Evidence:
    """The evidence of all but the first ``n_first`` examples given these.

    ``evidence(problem, prior_precision=, at="map", **settings)`` computes each of the two. A prior
    that is to be chosen is chosen for the first examples; a noise precision that was estimated is
    that of all of them, for the null model too.
    """
    n_first = check_whole("conditional_on", n_first, at_least=1)
    if n_first >= problem.n_train:
        raise InputError(
            f"conditional_on must leave examples over, got {n_first} of {problem.n_train}."
        )
    first = evidence(
        problem.subset(slice(0, n_first)), prior_precision=prior_precision, at="map", **settings
    )
    if isinstance(prior_precision, str):
        prior_precision = first.prior_precision
    every = evidence(problem, prior_precision=prior_precision, at="map", **settings)
    details = every.details | {"map_of_first": first.details["map"]}
    if (note := first.details.get("prior_note")) is not None:
        details["prior_note"] = f"by the first {n_first} examples, {note}"
    if first.details.get("tolerance_reached") is False:
        details |= {name: first.details[name] for name in ("tolerance_reached", "n_probes")}
    return replace(
        every,
        log_evidence=every.log_evidence - first.log_evidence,
        log_evidence_full=_minus(every.log_evidence_full, first.log_evidence_full),
        log_evidence_std=math.hypot(every.log_evidence_std, first.log_evidence_std),
        nll=every.nll - first.nll,
        penalty=every.penalty - first.penalty,
        log_occam_factor=every.log_occam_factor - first.log_occam_factor,
        log_occam_factor_full=_minus(every.log_occam_factor_full, first.log_occam_factor_full),
        log_null=_minus(every.log_null, first.log_null),
        # What says how good the points are is that of the worse.
        gradient_norm=max(every.gradient_norm or 0.0, first.gradient_norm or 0.0),
        newton_decrement=max(every.newton_decrement or 0.0, first.newton_decrement or 0.0),
        n_negative=max(every.n_negative, first.n_negative),
        negative_weight=max(every.negative_weight, first.negative_weight),
        kind=max(every.kind, first.kind, key=list(Kind).index),
        n_train=problem.n_train - n_first,
        conditional_on=n_first,
        details=details,
        _posterior=None,
    )


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b
