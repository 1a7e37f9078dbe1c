"""Annealed importance sampling: the evidence of a model, sampled rather than approximated.

    Z = integral of prior(w) L(w) dw,    Z_hat = mean over chains of prod_t L(w_t)^(b_t+1 - b_t)

with w_0 drawn from the prior and w_t moved by a Metropolised transition that leaves
prior(w) L(w)^(b_t) as it is (Neal 2001). E[Z_hat] = Z whatever the number of temperatures, so
P(ln Z_hat > ln Z + t) <= e^-t: a stochastic lower bound, which more temperatures raise.
"""

from noisescale.evidence.annealed.evidence import annealed_evidence
from noisescale.evidence.annealed.result import AnnealedEvidence

__all__ = ["AnnealedEvidence", "annealed_evidence"]
