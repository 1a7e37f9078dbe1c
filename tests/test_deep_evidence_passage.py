"""What docs/evidence.md says of the paper's network beside its peers."""

import json

from deep_evidence_passage import beside_peers_passage


def test_peers_stand_beside_with_their_own_numbers(tmp_path):
    document = {
        "exact": {"seconds": 4.04, "ratio": 1.44, "log_evidence": -832.8},
        "approximations": [
            {
                "method": "noisescale kfac",
                "log_evidence": -2028.1,
                "error": -1195.3,
                "seconds": 0.4,
            },
            {"method": "laplace-torch kron", "log_evidence": -2028.0, "seconds": 0.45},
            {"method": "noisescale diagonal", "log_evidence": -5388.6, "seconds": 0.3},
        ],
        "hessian_products": {"seconds": 0.0293, "speedup": 2.11},
    }
    path = tmp_path / "deep_evidence.json"
    path.write_text(json.dumps(document))
    text = beside_peers_passage(path)
    assert "laplace-torch's" in text  # whose hyphen is none of the signs
    text = text.replace("\N{MINUS SIGN}", "-")
    assert "takes 4.0 s, 1.44 times one float32" in text
    assert "says -2,028.0 in 0.45 s, ours -2,028.1 in 0.40 s" in text
    assert "1,195 nats below the exact -832.8" in text
    assert "29 ms, 2.1 times faster" in text
