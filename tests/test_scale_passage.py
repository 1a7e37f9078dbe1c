"""What docs/evidence.md says of benchmarks at scale: nothing of what was not run."""

import json

from measured import written
from scale_passage import RESULTS, beside_peers_passage, growth_passage, scale_passage

CELLS = {
    "exact:N = 1,000": {
        "n": 1_000,
        "status": "done",
        "exact": {"seconds": 5.0, "ratio": 1.4},
        "bounds": [{"tolerance": 100.0, "choleskys": 0.8}, {"tolerance": 0.1, "choleskys": 1.6}],
        "curve": {"seconds": 30.0, "evidences": 6.0},
    },
    "paper:bounds": {
        "n": 60_000,
        "status": "done",
        "seconds": 432.1,
        "gib": 7.26,
        "log_occam_bounds": [-9_876.5, -9_800.2],
        "rows": 540_000,
        "rows_that_matter": 400_000,
        "distance_by_rows_and_seconds": [[0, 10.0, 9_000.0], [512, 30.0, 800.0], [1_024, 70, 38.1]],
    },
    "paper:kfac": {
        "n": 60_000,
        "status": "done",
        "seconds": 12.6,
        "gib": 0.4,
        "log_evidence": -18_400.0,
        "log_occam_factor": -18_000.0,
    },
    "paper:laplace-torch kfac": {
        "n": 60_000,
        "status": "done",
        "seconds": 15.4,
        "gib": 0.1,
        "log_evidence": -18_405.0,
    },
    "paper:lanczos": {
        "n": 60_000,
        "status": "not done after 660 s",
        "heard": "products: 88%, about 79 s left",
    },
    "gpt:dual": {
        "n": 500,
        "status": "done",
        "seconds": 61.0,
        "gib": 1.0,
        "log_occam_factor": -1_234.0,
        "std": 0.0,
        "bounds": [-1_300.0, -1_291.0],
    },
    "paper:curvlinops lanczos": {
        "n": 60_000,
        "status": "done",
        "seconds": 600.0,
        "gib": 2.0,
        "seconds_a_product": 6.25,
        "n_probes": 1,
        "log_occam_factor": -9_700.0,
        "std": None,
    },
}


def test_the_passage_is_absent_until_the_benchmark_has_run(tmp_path):
    assert scale_passage(tmp_path / "scale.json") == ""
    if not RESULTS.exists():
        page = "before\n\n<!-- measured: scale -->\n\n<!-- end -->\n"
        assert written(page) == page


def test_every_cell_has_a_row_and_what_a_row_cannot_show_is_said(tmp_path):
    path = tmp_path / "scale.json"
    path.write_text(json.dumps(CELLS))
    text = scale_passage(path).replace("\N{MINUS SIGN}", "-")
    for row in (
        "| 784-800-10, MNIST | 60,000 | bounds | 432 s | 7.3 GiB | -9,876 to -9,800 |",
        "| 784-800-10, MNIST | 60,000 | lanczos | not done after 660 s (88 %) |  |  |",
        "| 784-800-10, MNIST | 60,000 | kfac | 13 s | 0.4 GiB | -18,000 |",
        "| 784-800-10, MNIST | 60,000 | laplace-torch kfac | 15 s | 0.1 GiB | -18,005 |",
        "| transformer, a million | 500 | dual | 61 s | 1.0 GiB | -1,234 (9.0 between bounds) |",
        "| 784-800-10, MNIST | 60,000 | curvlinops lanczos | 600 s | 2.0 GiB | -9,700 |",
    ):
        assert row in text
    assert "800 nats after 512 columns and 30 s; 38 nats after 1,024 columns and 70 s" in text
    assert "5.0 s, 1.40 times one float32 Cholesky factorisation of 10,000 rows" in text
    assert "a whole curve over prior precisions 6.0 times the evidence" in text
    assert "6.25 s a product: 1 probe(s) of 64 steps" in text


def test_growth_has_times_of_what_was_run_and_reasons_for_the_rest(tmp_path):
    size = {"p": 1_000, "N": 50}
    cells = [
        size | {"method": "dual", "fits": True, "seconds": 243.4, "gib": 0.52},
        size | {"method": "lanczos", "fits": True, "estimate_gib": 0.1},
        size | {"method": "kfac", "fits": False, "estimate_gib": 124.5},
        size | {"method": "dense", "fits": False, "estimate_gib": 9_000.0},
    ]
    path = tmp_path / "growth.json"
    path.write_text(json.dumps({"patience": 600.0, "cells": cells}))
    assert growth_passage(path).splitlines() == [
        "| p | N | dual | lanczos | kfac | dense |",
        "|---|---|---|---|---|---|",
        "| 1,000 | 50 | 240 s, 0.5 GiB | not run: over 600 s | would take 124 GiB "
        "| would take 9 TiB |",
    ]


def test_no_time_of_growth_is_extrapolated():
    cells = json.loads((RESULTS.parent / "growth.json").read_text())["cells"]
    assert not any("extrapolated" in cell for cell in cells)
    assert all("seconds" not in cell for cell in cells if not cell["fits"])


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
