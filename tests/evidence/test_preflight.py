import pytest

import noisescale as ns
from noisescale.evidence.preflight import preflight
from noisescale.evidence.problem import Facts
from oracles.models import NETWORK, data, params_of


def test_auto_goes_by_what_fits():
    def facts(p, N, widths=None):
        return Facts(p=p, N=N, C=10, rows=9 * N, pass_flops=2.0 * p, widths=widths)

    assert preflight(facts(300, 5_000), "auto", "ggn").method == "dense"
    paper = preflight(facts(636_010, 1_000, (784, 800, 10)), "auto", "ggn")
    assert paper.method == "dual"
    assert "dense: 8.83 TiB" in str(paper)
    assert preflight(facts(636_010, 1_000), "auto", "hessian").method == "lanczos"
    assert preflight(facts(2_000_000, 60_000), "auto", "ggn").method == "lanczos"
    with pytest.raises(ns.InputError, match="'dense' would take .* TiB.* would fit is .*lanczos"):
        preflight(facts(10**6, 1_000), "dense", "ggn")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prior_precision": None}, "an unpenalised parameter has no evidence"),
        ({"prior_precision": "best"}, "prior_precision must be one of auto, per_layer"),
        ({"method": "lanczos", "tolerance": 0.0}, "tolerance must be a finite number above 0"),
        ({"method": "lanczos", "max_probes": 1}, "max_probes must be at least 2"),
        ({"method": "kfac", "curvature": "hessian"}, "method='kfac' needs curvature='ggn'"),
        ({"prior_precision": "per_layer", "method": "lanczos"}, "needs curvature='ggn' with"),
    ],
)
def test_bad_input(settings, message):
    with pytest.raises(ns.InputError, match=message):
        ns.log_evidence(NETWORK, params_of(NETWORK), data(), **{"prior_precision": 1.0} | settings)
