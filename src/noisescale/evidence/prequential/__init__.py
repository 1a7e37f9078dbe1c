"""Train on the past, pay for the next block: the evidence of a whole training procedure.

    ln P(y | x) = sum over blocks of ln P(next block | all blocks before it)

Each factor is a prediction that was made before its labels were seen, so whatever the procedure is,
exp(ln P) summed over all labellings is 1: labels drawn at random give a Bayes factor above e^t
against the model that drew them with a probability of at most e^-t.
"""

from noisescale.evidence.prequential.evidence import prequential_evidence
from noisescale.evidence.prequential.jax_fit import fit_function
from noisescale.evidence.prequential.result import PrequentialEvidence

__all__ = ["PrequentialEvidence", "fit_function", "prequential_evidence"]
