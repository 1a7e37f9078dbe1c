"""What docs/evidence.md will say of benchmarks/scale.py's results: nothing before there are any."""

import json

from measured import written
from scale_passage import RESULTS, scale_passage

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
    "paper:lanczos": {"n": 60_000, "status": "not done after 660 s", "heard": "probe 4"},
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
        "| 784-800-10, MNIST | 60,000 | lanczos | not done after 660 s |  |  |",
        "| transformer, a million | 500 | dual | 61 s | 1.0 GiB | -1,234 (9.0 between bounds) |",
        "| 784-800-10, MNIST | 60,000 | curvlinops lanczos | 600 s | 2.0 GiB | -9,700 |",
    ):
        assert row in text
    assert "800 nats after 512 columns and 30 s; 38 nats after 1,024 columns and 70 s" in text
    assert "5.0 s, 1.40 times one float32 Cholesky factorisation of 10,000 rows" in text
    assert "a whole curve over prior precisions 6.0 times the evidence" in text
    assert "6.25 s a product: 1 probe(s) of 64 steps" in text
