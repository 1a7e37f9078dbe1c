"""The paper's claims, and the verdicts that runs give them.

A verdict is computed from data, never typed in. A claim that was not measured is ``undecided``,
so every claim appears in every report.
"""

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any


class Verdict(StrEnum):
    """What the data say of a claim."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Claim:
    """A statement and the criterion that decides it: the paper's, or one of our ``own``.

    ``identity`` names what of it cannot fail unless the code is wrong: ``"all"``, or a part.
    """

    id: str
    section: str
    where: str
    claim: str
    criterion: str
    own: bool = False
    identity: str = ""


@dataclass(frozen=True)
class Judgement:
    """What was measured about one claim under one convention.

    ``measured`` and ``uncertainty`` are plain numbers, strings or mappings of them, whatever the
    criterion speaks of. The headline count uses the convention marked ``primary``.
    """

    id: str
    verdict: Verdict
    measured: Any = None
    uncertainty: Any = None
    convention: str = "default"
    primary: bool = True


def judge_each(
    claim_id: str,
    holds: Iterable[bool],
    *,
    decidable: bool,
    measured: Any,
    uncertainty: Any = None,
    convention: str = "default",
    primary: bool = True,
) -> Judgement:
    """A verdict from whether the criterion holds in each repetition: in all, in none, or mixed.

    ``decidable`` is False for runs too small to decide (few seeds, fewer steps, less data).
    """
    outcomes = list(holds)
    verdict = Verdict.UNDECIDED
    if decidable and outcomes and all(outcomes):
        verdict = Verdict.REPRODUCED
    elif decidable and outcomes and not any(outcomes):
        verdict = Verdict.NOT_REPRODUCED
    return Judgement(claim_id, verdict, measured, uncertainty, convention, primary)


def conclude(
    claim_id: str,
    parts: Iterable[bool | None],
    *,
    decidable: bool,
    measured: Any,
    uncertainty: Any = None,
    convention: str = "default",
    primary: bool = True,
) -> Judgement:
    """A verdict from the parts of a criterion, each True, False (its negation holds), or neither.

    One part that is False settles it; all must be True to reproduce the claim.
    """
    answers = [None if part is None else bool(part) for part in parts]
    verdict = Verdict.UNDECIDED
    if decidable and answers and all(answers):
        verdict = Verdict.REPRODUCED
    elif decidable and False in answers:
        verdict = Verdict.NOT_REPRODUCED
    return Judgement(claim_id, verdict, measured, uncertainty, convention, primary)


@cache
def all_claims() -> tuple[Claim, ...]:
    """Every claim, in the order of the paper."""
    return tuple(Claim(**entry) for entry in criteria()["claim"])


def criteria() -> dict[str, Any]:
    """What ``claims.toml`` says: claims, and second readings of them."""
    text = (resources.files(__package__) / "claims.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def entries(judgements: Iterable[Judgement]) -> list[dict[str, Any]]:
    """One entry for each (claim, convention), ready for ``claims.json``."""
    judged: dict[str, list[Judgement]] = {}
    for judgement in judgements:
        judged.setdefault(judgement.id, []).append(judgement)
    unmeasured = Verdict.UNDECIDED
    rows = []
    for claim in all_claims():
        for judgement in judged.pop(claim.id, [Judgement(claim.id, unmeasured)]):
            rows.append({**asdict(claim), **asdict(judgement)})
    if judged:
        raise ValueError(f"judgements of claims that do not exist: {sorted(judged)}")
    return rows


def counts(
    rows: Iterable[dict[str, Any]], *, own: bool = False, identities: bool | None = None
) -> dict[str, int]:
    """How many of the paper's claims, or of our own, have which verdict.

    Under their primary convention. ``identities``: those alone that check the code, or, False,
    those alone that say something about the world.
    """
    seen = Counter(
        row["verdict"]
        for row in rows
        if row["primary"] and row["own"] == own and identities in (None, row["identity"] == "all")
    )
    return {verdict.value: seen[verdict] for verdict in Verdict}


def headline(rows: Iterable[dict[str, Any]]) -> str:
    """The paper's claims in a line: those about the world apart from those that check the code."""
    listed = list(rows)
    world, identities = (counts(listed, identities=kind) for kind in (False, True))
    parts = ((world, "claims about the world"), (identities, "identities"))
    return "; ".join(
        f"of {sum(seen.values())} {what} "
        + ", ".join(f"{count} {verdict}" for verdict, count in seen.items())
        for seen, what in parts
    )


def in_words(value: Any) -> str:
    """A measured value as people write it; a mapping as a list of named values."""
    if value is None:
        return "unknown"
    if isinstance(value, dict):
        return "; ".join(f"{name}: {in_words(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return f"[{', '.join(in_words(part) for part in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def result_in_words(row: Mapping[str, Any]) -> str:
    """What was measured, as in an entry, with its uncertainty: a number's, or several by name."""
    told, uncertainty = in_words(row["measured"]), row["uncertainty"]
    if uncertainty is None:
        return told
    if isinstance(uncertainty, dict):
        return f"{told} (uncertainty: {in_words(uncertainty)})"
    return f"{told} ± {in_words(uncertainty)}"
