from decimal import Decimal, localcontext

import numpy as np

from noisescale.evidence.curvature.roots import softmax_root


def test_the_root_of_a_softmax_in_full_relative_accuracy():
    """Against 600 digits: 1 - p of a certain model is 1e-30, far below float64's epsilon."""
    logits = np.array([[70.0, 0.0, -3.0], [0.1, 0.3, -0.2], [0.0, 500.0, -500.0]])
    root = softmax_root(logits)
    for R, z in zip(root, logits, strict=True):
        with localcontext(prec=600):
            weights = [Decimal(value).exp() for value in z]
            p = [w / sum(weights) for w in weights]
            exact = [[float(p[a] * ((a == b) - p[b])) for b in range(3)] for a in range(3)]
        np.testing.assert_allclose(R.T @ R, exact, rtol=1e-12)
