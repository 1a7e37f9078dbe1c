"""Where second statistics, or the seeds that came later, would change a first verdict."""

from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from noisescale.paper.claims import Judgement
from noisescale.paper.runs import Runs
from noisescale.paper.section import Measured, Section

if TYPE_CHECKING:
    from noisescale.paper.report import Shown

FIRST_SEEDS = 3
# Sections that were judged with three seeds before they had five: what they keep of a seed is runs,
# or an entry of a list by seed.
_EXTENDED = ("3", "4", "5", "7", "8", "9", "10", "A", "D")


def second_statistics(shown: Iterable["Shown"]) -> list[dict[str, Any]]:
    """A row for each claim and convention that was judged by second statistics too.

    ``first`` is the verdict that counts; ``second`` that of :mod:`noisescale.paper.statistics`;
    ``first_seeds`` what the first criterion says of seeds 0 to 2 alone, None where five were there
    from the start.
    """
    rows = []
    for one in shown:
        first = _by_convention(one.judgements)
        early = _by_convention(one.early)
        for judgement in one.findings.second:
            key = judgement.id, judgement.convention
            verdicts = {
                "first": first[key].verdict.value,
                "second": judgement.verdict.value,
                "first_seeds": early[key].verdict.value if key in early else None,
            }
            others = {verdict for verdict in verdicts.values() if verdict is not None}
            rows.append(
                {
                    "id": judgement.id,
                    "convention": judgement.convention,
                    "primary": judgement.primary,
                    "seeds": one.seeds,
                    **verdicts,
                    "changes": len(others) > 1,
                    "measured": judgement.measured,
                    "uncertainty": judgement.uncertainty,
                }
            )
    return sorted(rows, key=lambda row: (row["id"], not row["primary"]))


def told_of_later_seeds(shown: Iterable["Shown"]) -> str:
    """Which first verdicts the seeds that came later changed, in a sentence."""
    n, changed = 0, []
    for one in shown:
        now = _by_convention(one.judgements)
        for key, early in _by_convention(one.early).items():
            if early.primary:
                n += 1
                if now[key].verdict is not early.verdict:
                    changed.append(
                        f"{early.id} ({early.verdict.value}, now {now[key].verdict.value})"
                    )
    return (
        f"By the first criteria, of {n} claims that were judged by seeds 0 to 2 before there were "
        f"five, seeds 3 and 4 changed {', '.join(changed) if changed else 'none'}."
    )


def _by_convention(judgements: Iterable[Judgement]) -> dict[tuple[str, str], Judgement]:
    return {(judgement.id, judgement.convention): judgement for judgement in judgements}


def judge_first_seeds(section: Section, data: Measured) -> tuple[Judgement, ...]:
    """What seeds 0 to 2 alone say, where there are more; nothing else."""
    if section.id not in _EXTENDED or data.at.seeds <= FIRST_SEEDS:
        return ()
    parts = {
        field.name: _first(getattr(data, field.name), data.at.seeds)
        for field in fields(data)
        if field.name != "at"
    }
    return section.judge(replace(data, at=replace(data.at, seeds=FIRST_SEEDS), **parts)).judgements


def _first(value: Any, n_seeds: int) -> Any:
    if isinstance(value, Runs):
        frame = value.frame[value.frame["seed"] < FIRST_SEEDS]
        return Runs(frame, value.curves[value.curves["key"].isin(frame["key"])])
    if isinstance(value, dict):
        return {key: _first(part, n_seeds) for key, part in value.items()}
    if isinstance(value, list) and len(value) == n_seeds and all(map(_of_a_seed, value)):
        return value[:FIRST_SEEDS]
    return value


def _of_a_seed(part: Any) -> bool:
    """Whether it is what is kept of a seed: an object, several of them, or that there is none."""
    if isinstance(part, list):
        return all(map(is_dataclass, part))
    return part is None or is_dataclass(part)
