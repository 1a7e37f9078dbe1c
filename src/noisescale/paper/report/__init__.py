"""The report: one HTML file that needs nothing else."""

import base64
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined

from noisescale.paper.section import Outcome, Section


def render(
    claims: dict[str, Any], counts: dict[str, int], outcomes: list[tuple[Section, Outcome]]
) -> str:
    """The page, everything from data escaped, figures inside as data addresses."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["data_address"] = _data_address
    environment.filters["words"] = _words
    template = (resources.files(__package__) / "template.html").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        report=claims, counts=counts, outcomes=outcomes, claims=claims["claims"]
    )


def _words(value: Any) -> str:
    """A measured value as people write it; a mapping as a list of named values."""
    if isinstance(value, dict):
        return "; ".join(f"{name} {_words(part)}" for name, part in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _data_address(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
