"""Second readings: what else a claim may have meant, judged beside it and never in its place.

Their criteria stand in ``claims.toml`` with the day on which they were fixed, before the runs that
decide them. A reading may be judged under several conventions; found under one of them it counts
as reproduced.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from noisescale.paper.claims import Judgement, Verdict, all_claims, criteria


@dataclass(frozen=True)
class Reading:
    """Another reading of claims, and the criterion that decides it.

    ``against``: reproduced, it speaks against the claim.
    """

    id: str
    section: str
    of: tuple[str, ...]
    fixed_on: str
    reading: str
    criterion: str
    reason: str
    against: bool = False


@cache
def all_readings() -> tuple[Reading, ...]:
    """Every reading, in the order of the claims."""
    return tuple(
        Reading(**{**entry, "of": tuple(entry["of"]), "fixed_on": str(entry["fixed_on"])})
        for entry in criteria()["reading"]
    )


def reading_entries(judgements: Iterable[Judgement]) -> list[dict[str, Any]]:
    """One entry for each (reading, convention), ready for ``claims.json``."""
    judged: dict[str, list[Judgement]] = {}
    for judgement in judgements:
        judged.setdefault(judgement.id, []).append(judgement)
    rows = []
    for reading in all_readings():
        for judgement in judged.pop(reading.id, [Judgement(reading.id, Verdict.UNDECIDED)]):
            rows.append({**asdict(reading), "of": list(reading.of), **asdict(judgement)})
    if judged:
        raise ValueError(f"judgements of readings that do not exist: {sorted(judged)}")
    return rows


def overall(rows: Iterable[dict[str, Any]]) -> Verdict:
    """The verdict on a reading from its entries: found under one convention, or under none."""
    verdicts = [row["verdict"] for row in rows]
    if Verdict.REPRODUCED in verdicts:
        return Verdict.REPRODUCED
    if all(verdict == Verdict.NOT_REPRODUCED for verdict in verdicts):
        return Verdict.NOT_REPRODUCED
    return Verdict.UNDECIDED


def meanings(
    claims: Iterable[dict[str, Any]], readings: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """For each claim that has readings: its first verdict, theirs, and what both probably mean.

    Of a reading of many claims those alone are listed that did not simply reproduce.
    """
    first = {row["id"]: row["verdict"] for row in claims if row["primary"]}
    entries: dict[str, list[dict[str, Any]]] = {}
    for row in readings:
        entries.setdefault(row["id"], []).append(row)
    found = []
    for claim in all_claims():
        of = [r for r in all_readings() if claim.id in r.of]
        alone = any(len(r.of) == 1 for r in of)
        if not of or (not alone and first[claim.id] == Verdict.REPRODUCED):
            continue
        verdicts = {r.id: overall(entries[r.id]).value for r in of}
        found.append(
            {
                "id": claim.id,
                "claim": claim.claim,
                "verdict": first[claim.id],
                "readings": verdicts,
                "meaning": " ".join(
                    _meaning(Verdict(first[claim.id]), r, entries[r.id]) for r in of
                ),
            }
        )
    return found


def _meaning(first: Verdict, reading: Reading, rows: list[dict[str, Any]]) -> str:
    """What a first verdict and a reading say together."""
    second = overall(rows)
    if all(row["measured"] is None for row in rows):
        return f"{reading.id} is not measured yet: what is believed rests on the first criterion."
    name = f"{reading.id} ({reading.reading})"
    under = [row["convention"] for row in rows if row["verdict"] == Verdict.REPRODUCED]
    where = f", {', '.join(under)}" if under and under != ["default"] else ""
    if second is Verdict.UNDECIDED:
        return f"Not settled: by its data so far {name} is undecided."
    if reading.against:
        return (
            f"Probably not so as the paper says: {name} holds{where}."
            if second is Verdict.REPRODUCED
            else f"{name} does not explain it."
        )
    if second is Verdict.REPRODUCED:
        return {
            Verdict.REPRODUCED: f"Probably so: {name} holds too{where}.",
            Verdict.NOT_REPRODUCED: f"Probably so in another sense than it was first read in: "
            f"{name} holds{where}.",
            Verdict.UNDECIDED: f"Probably so: {name} holds{where}.",
        }[first]
    return {
        Verdict.REPRODUCED: f"By the first criterion alone: {name} does not hold.",
        Verdict.NOT_REPRODUCED: f"Probably not so here: {name} does not hold either.",
        Verdict.UNDECIDED: f"Probably not so: {name} does not hold.",
    }[first]
