"""Outcomes as JSON: what a section found, kept so that it can be shown again without measuring."""

import hashlib
import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from noisescale.paper.claims import Judgement, Verdict
from noisescale.paper.section import Context, Measurement, Outcome, Picture, Section


def to_json(outcome: Outcome) -> dict[str, Any]:
    """The outcome as plain values."""
    return asdict(outcome)


def from_json(content: dict[str, Any]) -> Outcome:
    """What :func:`to_json` gave, restored."""
    return Outcome(
        statement=content["statement"],
        pictures=tuple(Picture(**picture) for picture in content["pictures"]),
        measurements=tuple(Measurement(**row) for row in content["measurements"]),
        judgements=tuple(
            Judgement(**row | {"verdict": Verdict(row["verdict"])}) for row in content["judgements"]
        ),
        remarks=tuple(content["remarks"]),
    )


def outcome_path(folder: Path, section_id: str, scale: str, seeds: int) -> Path:
    """Where a report's folder keeps the outcome of a section."""
    return folder / "measured" / f"section-{section_id}-{scale}-{seeds}.json"


def measured_before(section: Section, context: Context) -> Outcome | None:
    """The outcome of the same section, by the same code on the same data, if it is kept."""
    if context.folder is None:
        return None
    path = outcome_path(context.folder, section.id, context.scale, context.seeds)
    content = read_outcome(path)
    if content is None or content["circumstances"] != _circumstances(context):
        return None
    return from_json(content["outcome"])


def keep_outcome(section: Section, context: Context, outcome: Outcome) -> None:
    """Write the outcome into the report's folder, whole or not at all."""
    if context.folder is None:
        return
    path = outcome_path(context.folder, section.id, context.scale, context.seeds)
    path.parent.mkdir(exist_ok=True)
    document = {"circumstances": _circumstances(context), "outcome": to_json(outcome)}
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(document) + "\n", encoding="utf-8")
    unfinished.replace(path)


def read_outcome(path: Path) -> dict[str, Any] | None:
    """The kept document; None if there is none that can be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(content, dict) and {"circumstances", "outcome"} <= set(content)
    return content if whole else None


def _circumstances(context: Context) -> dict[str, str]:
    return {"code": _code(), "data": context.data.fingerprint}


@cache
def _code() -> str:
    """The content of this package: an outcome of other code is measured again."""
    digest = hashlib.sha256()
    root = Path(__file__).parent.parent
    for path in sorted(root.rglob("*")):
        if path.suffix in (".py", ".toml"):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:32]
