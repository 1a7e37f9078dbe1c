"""What ``benchmarks/deep_evidence.py`` measured, for docs/evidence.md."""

import json
from pathlib import Path

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "deep_evidence.json"


def beside_peers_passage(results: Path = RESULTS) -> str:
    """The paper's network beside laplace-torch and curvlinops, in words."""
    document = json.loads(results.read_text(encoding="utf-8"))
    exact, products = document["exact"], document["hessian_products"]
    rows = {row["method"]: row for row in document["approximations"]}
    ours, theirs = rows["noisescale kfac"], rows["laplace-torch kron"]
    diagonal = rows["noisescale diagonal"]
    value = _signed(f"{exact['log_evidence']:,.1f}")
    said = {
        row["method"]: _signed(f"{row['log_evidence']:,.1f}") for row in document["approximations"]
    }
    return (
        "Side by side in one run (`benchmarks/deep_evidence.py`, the network trained with L2 0.1 "
        f"on 1,000 images): the exact log evidence takes {exact['seconds']:.1f} s, "
        f"{exact['ratio']:.2f} times one float32 Cholesky factorisation of a 10,000 x 10,000 "
        f"matrix. laplace-torch's KFAC says {said['laplace-torch kron']} in "
        f"{theirs['seconds']:.2f} s, ours {said['noisescale kfac']} in {ours['seconds']:.2f} s: "
        f"the same approximation, {-ours['error']:,.0f} nats below the exact "
        f"{value}, because it drops the correlations between "
        "layers and takes the average of a product for the product of averages; theirs is in "
        "float32, ours in float64. The diagonal says "
        f"{said['noisescale diagonal']} in {diagonal['seconds']:.2f} s. A product with the "
        f"Hessian takes {1e3 * products['seconds']:.0f} ms, {products['speedup']:.1f} times faster "
        "than curvlinops'."
    )


def _signed(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")
