"""Should I believe this minimum? The Bayesian evidence against a null model that guesses."""

from noisescale.evidence.curvature.spectrum import Spectrum
from noisescale.evidence.laplace import (
    evidence_curve,
    log_evidence,
    log_evidence_from_operator,
    permutation_degeneracy,
    spectrum,
)
from noisescale.evidence.predict import posterior_predict
from noisescale.evidence.prior_choice import EvidenceCurve
from noisescale.evidence.result import Comparison, Evidence, NotAMinimumWarning, compare
from noisescale.likelihood import Likelihood, gaussian

__all__ = [
    "Comparison",
    "Evidence",
    "EvidenceCurve",
    "Likelihood",
    "NotAMinimumWarning",
    "Spectrum",
    "compare",
    "evidence_curve",
    "gaussian",
    "log_evidence",
    "log_evidence_from_operator",
    "permutation_degeneracy",
    "posterior_predict",
    "spectrum",
]
