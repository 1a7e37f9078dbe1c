"""What ``benchmarks/scale.py`` measured, as docs/evidence.md shows it; nothing until it has run."""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "scale.json"
_MODELS = {
    "paper": "784-800-10, MNIST",
    "resnet": "residual network, 10 million parameters",
    "resnet300k": "residual network, 0.3 million",
    "gpt": "transformer, a million",
}


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
    for name, cell in document.items():
        model, _, method = name.partition(":")
        if model in _MODELS:
            took = f"{cell['seconds']:.0f} s" if "seconds" in cell else cell["status"]
            space = f"{cell['gib']:.1f} GiB" if "gib" in cell else ""
            row = (_MODELS[model], f"{cell['n']:,}", method, took, space, _value(cell))
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) if len(lines) > 2 else ""


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
