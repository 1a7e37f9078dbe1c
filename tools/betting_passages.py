"""The passage of docs/bets.md that says what the evidences cost and who believes random labels.

It is empty until its benchmarks have been run at full size.
"""

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"


def _document(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _nats(value: float | None) -> str:
    return "withheld" if value is None else f"{value:+,.0f}"


def beliefs_passage() -> str:
    """Who believes random labels, and what it costs."""
    at_map, bets = _document("map_evidence"), _document("betting")
    if at_map is None or bets is None:
        return ""
    said = textwrap.fill(
        f"The paper's network (636,010 parameters) trained on N = {at_map['n_train']:,} images at "
        "B = 30 without L2, on true labels and on labels drawn at random: log odds for the network "
        "against guessing, and seconds on two cores (`benchmarks/betting.py`, "
        "`benchmarks/map_evidence.py`). Above 0 the network is believed:",
        width=100,
        break_long_words=False,
        break_on_hyphens=False,
    )
    rows = {row["labels"]: row for row in at_map["rows"]}
    paid = {row["labels"]: row for row in bets["beliefs"]}
    both = ("true", "random")

    def odds(name: str) -> list[str]:
        return [
            f"{_nats(paid[k][name]['log_bayes_factor'])} ({paid[k][name]['seconds']:.0f} s)"
            for k in both
        ]

    def minus(E: float | None) -> float | None:
        return None if E is None else -E

    maps = [f"{_nats(minus(rows[k]['E_at_the_map']))} ({rows[k]['seconds']:.0f} s)" for k in both]
    return f"{said}\n\n" + _table(
        ["evidence", "true labels", "random labels"],
        [
            ["laplace-torch, post hoc, its best prior", *odds("laplace_torch")],
            ['exactly at the same point and prior (`at="point"`)', *odds("exact_at_the_point")],
            [f'`at="map"`, prior precision {rows["true"]["prior_precision"]:g}', *maps],
            ["prequential, one order and seed", *odds("prequential")],
        ],
    )


PASSAGES: dict[str, Callable[[], str]] = {"beliefs": beliefs_passage}
