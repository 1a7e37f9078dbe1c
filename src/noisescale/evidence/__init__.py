"""Should I believe this minimum? The Bayesian evidence against a null model that guesses."""

from noisescale.evidence.annealed import (
    AnnealedEvidence,
    AnnealedGap,
    annealed_evidence,
    annealed_gap,
)
from noisescale.evidence.comparison import Comparison, compare
from noisescale.evidence.curvature.spectrum import Spectrum, spectrum
from noisescale.evidence.from_operator import log_evidence_from_operator
from noisescale.evidence.kind import Kind
from noisescale.evidence.laplace import log_evidence, permutation_degeneracy
from noisescale.evidence.map import MapEstimate, MapStatus, map_estimate
from noisescale.evidence.predict import posterior_predict
from noisescale.evidence.prequential import (
    PrequentialEvidence,
    fit_function,
    prequential_evidence,
)
from noisescale.evidence.prior_choice import EvidenceCurve, evidence_curve
from noisescale.evidence.refine import RefinedEvidence
from noisescale.evidence.result import Evidence, NotAMinimumWarning
from noisescale.evidence.weight_decay import prior_precision_of, weight_decay_of
from noisescale.likelihood import Likelihood, categorical, gaussian

__all__ = [
    "AnnealedEvidence",
    "AnnealedGap",
    "Comparison",
    "Evidence",
    "EvidenceCurve",
    "Kind",
    "Likelihood",
    "MapEstimate",
    "MapStatus",
    "NotAMinimumWarning",
    "PrequentialEvidence",
    "RefinedEvidence",
    "Spectrum",
    "annealed_evidence",
    "annealed_gap",
    "categorical",
    "compare",
    "evidence_curve",
    "fit_function",
    "gaussian",
    "log_evidence",
    "log_evidence_from_operator",
    "map_estimate",
    "permutation_degeneracy",
    "posterior_predict",
    "prequential_evidence",
    "prior_precision_of",
    "spectrum",
    "weight_decay_of",
]
