"""Second readings: what else a claim may have meant, judged beside it and never in its place.

Their criteria stand in ``claims.toml`` with the day on which they were fixed: before the runs that
decide them, though of R14, R23, R25, R33 and R39, which judge figures 3, 5 and 8 anew, three seeds
had been seen. A reading may be judged under several conventions; it is decided where all of them
say the same.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import date
from functools import cache
from typing import Any

from noisescale.paper.claims import Judgement, Verdict, all_claims, criteria, in_words


@dataclass(frozen=True)
class Reading:
    """Another reading of claims, and the criterion that decides it.

    ``conventions`` are those it is judged under, the primary one first; ``against``: reproduced, it
    speaks against the claim. ``if_reproduced`` and ``if_not_reproduced`` say what is then believed.
    """

    id: str
    section: str
    of: tuple[str, ...]
    fixed_on: str
    reading: str
    criterion: str
    reason: str
    if_reproduced: str
    if_not_reproduced: str
    conventions: tuple[str, ...] = ("default",)
    against: bool = False


@cache
def all_readings() -> tuple[Reading, ...]:
    """Every reading, in the order of the claims."""
    return tuple(
        Reading(**{k: _plain(value) for k, value in entry.items()})
        for entry in criteria()["reading"]
    )


def _plain(value: Any) -> Any:
    """A value of the file, frozen: lists as tuples, days as text."""
    if isinstance(value, list):
        return tuple(value)
    return str(value) if isinstance(value, date) else value


def reading_entries(judgements: Iterable[Judgement]) -> list[dict[str, Any]]:
    """One entry for each (reading, convention), ready for ``claims.json``.

    ``overall`` is the verdict on the reading, of all its conventions together.
    """
    judged: dict[str, list[Judgement]] = {}
    for judgement in judgements:
        judged.setdefault(judgement.id, []).append(judgement)
    rows = []
    for reading in all_readings():
        found = judged.pop(reading.id, [Judgement(reading.id, Verdict.UNDECIDED)])
        lists = {"of": list(reading.of), "conventions": list(reading.conventions)}
        together = {"overall": overall(asdict(judgement) for judgement in found)}
        rows += [asdict(reading) | lists | asdict(judgement) | together for judgement in found]
    if judged:
        raise ValueError(f"judgements of readings that do not exist: {sorted(judged)}")
    return rows


def overall(rows: Iterable[dict[str, Any]]) -> Verdict:
    """The verdict on a reading from its entries, one a convention: that of all, or none."""
    verdicts = {Verdict(row["verdict"]) for row in rows}
    return verdicts.pop() if len(verdicts) == 1 else Verdict.UNDECIDED


def verdicts_on(rows: Iterable[dict[str, Any]]) -> dict[str, str]:
    """The verdict on each reading, by its id."""
    return {name: overall(of_it).value for name, of_it in _by_reading(rows).items()}


def _by_reading(rows: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["id"], []).append(row)
    return found


def meanings(
    claims: Iterable[dict[str, Any]], readings: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """For each claim that has readings: its first verdict, theirs, and what both probably mean.

    Of a reading of many claims those alone are listed that did not simply reproduce.
    """
    judged = list(claims)
    first = {row["id"]: row for row in judged if row["primary"]}
    entries = _by_reading(readings)
    found = []
    for claim in all_claims():
        of = [r for r in all_readings() if claim.id in r.of]
        alone = any(len(r.of) == 1 for r in of)
        if not of or (not alone and first[claim.id]["verdict"] == Verdict.REPRODUCED):
            continue
        verdicts = {r.id: overall(entries[r.id]).value for r in of}
        elsewhere = [row for row in judged if row["id"] == claim.id and not row["primary"]]
        found.append(
            {
                "id": claim.id,
                "claim": claim.claim,
                "verdict": first[claim.id]["verdict"],
                "readings": verdicts,
                "meaning": " ".join(
                    _meaning(first[claim.id], r, entries[r.id], elsewhere) for r in of
                ),
            }
        )
    return found


def _meaning(
    first: dict[str, Any],
    reading: Reading,
    rows: list[dict[str, Any]],
    elsewhere: list[dict[str, Any]],
) -> str:
    """What a claim's first entry and a reading say together, with the numbers that say so.

    ``elsewhere`` are the claim's entries under conventions that are not the primary one.
    """
    if all(row["measured"] is None for row in rows):
        return f"{reading.id} is not measured yet: what is believed rests on the first criterion."
    second = overall(rows)
    mixed = any(row["verdict"] != second for row in rows)
    numbers = "; ".join(_numbers(row, mixed, alone=len(rows) == 1) for row in rows)
    if mixed:
        verdicts = {Verdict(row["verdict"]) for row in rows}
        opposed = {Verdict.REPRODUCED, Verdict.NOT_REPRODUCED} <= verdicts
        said = "Depends on the convention" if opposed else "Settled under some conventions alone"
        return f"{said}: {numbers}."
    if second is Verdict.UNDECIDED:
        return f"Not settled: {numbers}."
    said = reading.if_reproduced if second is Verdict.REPRODUCED else reading.if_not_reproduced
    if len(reading.of) > 1:  # of all together; this one may hold in some places
        where = {k: n for k, n in (rows[0]["uncertainty"] or {}).items() if first["id"] in k}
        also = "".join(f"; {row['convention']}: {row['verdict']}" for row in elsewhere)
        numbers = (
            f"{in_words(where)}; first measured {in_words(first['measured'])}{also}; {numbers}"
        )
    return f"{said[0].upper()}{said[1:]} ({numbers})."


def _numbers(row: dict[str, Any], mixed: bool, *, alone: bool) -> str:
    """What one convention gave, with its verdict where they differ."""
    told = in_words(row["measured"])
    if mixed:
        return f"{Verdict(row['verdict']).value} under {row['convention']} ({told})"
    return told if alone else f"{row['convention']}: {told}"
