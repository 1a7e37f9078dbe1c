"""Should I believe this minimum? The Bayesian evidence against a null model that guesses."""

from typing import TYPE_CHECKING

from noisescale.evidence.comparison import Comparison, compare
from noisescale.evidence.curvature.spectrum import Spectrum, spectrum
from noisescale.evidence.from_operator import log_evidence_from_operator
from noisescale.evidence.kind import Kind
from noisescale.evidence.laplace import log_evidence, permutation_degeneracy
from noisescale.evidence.map import MapEstimate, MapStatus, map_estimate
from noisescale.evidence.predict import posterior_predict
from noisescale.evidence.prequential import PrequentialEvidence, prequential_evidence
from noisescale.evidence.prior_choice import EvidenceCurve, evidence_curve
from noisescale.evidence.refine import RefinedEvidence
from noisescale.evidence.result import Evidence, NotAMinimumWarning
from noisescale.evidence.weight_decay import prior_precision_of, weight_decay_of
from noisescale.imports import on_first_use
from noisescale.likelihood import Likelihood, categorical, gaussian

if TYPE_CHECKING:
    from noisescale.evidence.annealed import AnnealedEvidence, annealed_evidence
    from noisescale.evidence.prequential.jax_fit import fit_function

__all__ = [
    "AnnealedEvidence",
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

# What JAX computes waits for it until it is used: users of PyTorch need not have it loaded.
__getattr__ = on_first_use(
    dict.fromkeys(("AnnealedEvidence", "annealed_evidence"), f"{__name__}.annealed")
    | {"fit_function": f"{__name__}.prequential.jax_fit"}
)
