"""The paper's claims, and the verdicts that runs give them.

A verdict is computed from data, never typed in. A claim that was not measured is ``undecided``,
so every claim appears in every report.
"""

import tomllib
from collections import Counter
from collections.abc import Iterable
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
    """A statement and the criterion that decides it: the paper's, or one of our ``own``."""

    id: str
    section: str
    where: str
    claim: str
    criterion: str
    own: bool = False


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
    answers = list(parts)
    verdict = Verdict.UNDECIDED
    if decidable and answers and all(part is True for part in answers):
        verdict = Verdict.REPRODUCED
    elif decidable and any(part is False for part in answers):
        verdict = Verdict.NOT_REPRODUCED
    return Judgement(claim_id, verdict, measured, uncertainty, convention, primary)


@cache
def all_claims() -> tuple[Claim, ...]:
    """Every claim, in the order of the paper."""
    text = (resources.files(__package__) / "claims.toml").read_text(encoding="utf-8")
    return tuple(Claim(**entry) for entry in tomllib.loads(text)["claim"])


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


def counts(rows: Iterable[dict[str, Any]], *, own: bool = False) -> dict[str, int]:
    """How many of the paper's claims, or of our own, have which verdict.

    Under their primary convention.
    """
    seen = Counter(row["verdict"] for row in rows if row["primary"] and row["own"] == own)
    return {verdict.value: seen[verdict] for verdict in Verdict}
