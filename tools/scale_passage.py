"""What ``benchmarks/`` growth.py, scale.py and deep_evidence.py measured, for docs/evidence.md."""

import json
import re
from pathlib import Path
from typing import Any

from pytorch_passage import in_seconds

FOLDER = Path(__file__).parent.parent / "benchmarks" / "results"
RESULTS = FOLDER / "scale.json"
_MODELS = {
    "paper": "784-800-10, MNIST",
    "resnet": "residual network, 10 million parameters",
    "resnet300k": "residual network, 0.3 million",
    "gpt": "transformer, a million",
}


def growth_passage(results: Path = FOLDER / "growth.json") -> str:
    """How time and memory grow with parameters and examples: a row a size, a column a method."""
    document = json.loads(results.read_text(encoding="utf-8"))
    cells = document["cells"]
    methods = list(dict.fromkeys(cell["method"] for cell in cells))
    sizes = sorted({(cell["p"], cell["N"]) for cell in cells})
    known = {(cell["p"], cell["N"], cell["method"]): cell for cell in cells}
    lines = [f"| p | N | {' | '.join(methods)} |", "|---" * (2 + len(methods)) + "|"]
    for p, n in sizes:
        row = (_grown(known[p, n, method], document["patience"]) for method in methods)
        lines.append(f"| {p:,} | {n:,} | {' | '.join(row)} |")
    return "\n".join(lines)


def _grown(cell: dict[str, Any], patience: float) -> str:
    if "seconds" in cell:
        return f"{in_seconds(cell['seconds'])}, {cell['gib']:.1f} GiB"
    if not cell["fits"]:
        gib = cell["estimate_gib"]
        return f"would take {gib:,.0f} GiB" if gib < 1_024 else f"would take {gib / 1_024:,.0f} TiB"
    return f"not run: over {patience:.0f} s"


def beside_peers_passage(results: Path = FOLDER / "deep_evidence.json") -> str:
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


def scale_passage(results: Path = RESULTS) -> str:
    """The table of all cells, and in words what the table cannot show."""
    if not results.exists():
        return ""
    document = json.loads(results.read_text(encoding="utf-8"))
    parts = [_table(document), *_sentences(document)]
    return "\n\n".join(part for part in parts if part)


def _table(document: dict[str, Any]) -> str:
    lines = [
        "| model | N | method | time | memory | log Occam factor |",
        "|---|---|---|---|---|---|",
    ]
    for model, words in _MODELS.items():
        own = document.get(f"{model}:kfac", {})
        for name, cell in document.items():
            of, _, method = name.partition(":")
            if of == model:
                space = f"{cell['gib']:.1f} GiB" if "gib" in cell else ""
                value = _value(_with_occam_factor(cell, own))
                row = (words, f"{cell['n']:,}", method, _took(cell), space, value)
                lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def _took(cell: dict[str, Any]) -> str:
    """Its seconds; else how far it came in its time."""
    if "seconds" in cell:
        return f"{cell['seconds']:.0f} s"
    share = re.search(r"(\d+)%", cell.get("heard", ""))
    return cell["status"] + (f" ({share[1]} %)" if share else "")


def _with_occam_factor(cell: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Of a peer's evidence at the same minimum: the rest of an evidence is the same for all."""
    if "log_occam_factor" in cell or "log_evidence" not in cell or "log_evidence" not in own:
        return cell
    rest = own["log_evidence"] - own["log_occam_factor"]
    return cell | {"log_occam_factor": cell["log_evidence"] - rest}


def _value(cell: dict[str, Any]) -> str:
    if (both := cell.get("log_occam_bounds")) is not None:
        return _signed(f"{both[0]:,.0f} to {both[1]:,.0f}")
    value = cell.get("log_occam_factor")
    if value is None:
        return ""
    shown = f"{value:,.0f}"
    if cell.get("std"):
        shown += f" ± {cell['std']:.0f}"
    if cell.get("bounds"):
        shown += f" ({cell['bounds'][1] - cell['bounds'][0]:.1f} between bounds)"
    return _signed(shown)


def _signed(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")


def _sentences(document: dict[str, Any]) -> list[str]:
    said = []
    bounds = document.get("paper:bounds", {})
    if trail := bounds.get("distance_by_rows_and_seconds"):
        few = [trail[round(i * (len(trail) - 1) / 5)] for i in range(1, 6)]
        steps = "; ".join(
            f"{gap:,.0f} nats after {rows:,} columns and {seconds:.0f} s"
            for rows, seconds, gap in dict.fromkeys(map(tuple, few))
        )
        said.append(
            f"Of {bounds['rows']:,} rows {bounds['rows_that_matter']:,} mattered; the bounds at "
            f"N = {bounds['n']:,} were apart by {steps}."
        )
    exact = document.get("exact:N = 1,000", {})
    if "exact" in exact:
        near = "; ".join(
            f"{cell['tolerance']:g} nats, {cell['choleskys']:.1f}" for cell in exact["bounds"]
        )
        said.append(
            f"At N = {exact['n']:,} the exact evidence takes {exact['exact']['seconds']:.1f} s, "
            f"{exact['exact']['ratio']:.2f} times one float32 Cholesky factorisation of "
            f"{10 * exact['n']:,} rows; a whole curve over prior precisions "
            f"{exact['curve']['evidences']:.1f} times the evidence. Bounds of a tolerance, in "
            f"such factorisations: {near}."
        )
    peer = document.get("paper:curvlinops lanczos", {})
    if "seconds_a_product" in peer:
        said.append(
            f"curvlinops' operator took {peer['seconds_a_product']:.2f} s a product: "
            f"{peer['n_probes']} probe(s) of 64 steps in its time."
        )
    return said
