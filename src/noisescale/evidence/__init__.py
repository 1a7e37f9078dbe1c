"""Should I believe this minimum? The Bayesian evidence against a null model that guesses."""

from noisescale.evidence.comparison import Comparison, compare
from noisescale.evidence.curvature.spectrum import Spectrum, spectrum
from noisescale.evidence.laplace import (
    log_evidence,
    log_evidence_from_operator,
    permutation_degeneracy,
)
from noisescale.evidence.predict import posterior_predict
from noisescale.evidence.prior_choice import EvidenceCurve, evidence_curve
from noisescale.evidence.result import Evidence, NotAMinimumWarning
from noisescale.evidence.weight_decay import prior_precision_of, weight_decay_of
from noisescale.likelihood import Likelihood, categorical, gaussian

__all__ = [
    "Comparison",
    "Evidence",
    "EvidenceCurve",
    "Likelihood",
    "NotAMinimumWarning",
    "Spectrum",
    "categorical",
    "compare",
    "evidence_curve",
    "gaussian",
    "log_evidence",
    "log_evidence_from_operator",
    "permutation_degeneracy",
    "posterior_predict",
    "prior_precision_of",
    "spectrum",
    "weight_decay_of",
]
