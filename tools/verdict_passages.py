"""The passages of docs/paper.md that say how claims and their readings were judged."""

import textwrap
from functools import cache
from typing import Any

from noisescale.paper.claims import Verdict, all_claims, counts, headline, in_words
from noisescale.paper.report import Shown
from noisescale.paper.second import judge_first_seeds
from noisescale.paper.sections import SECTIONS
from noisescale.paper.shipped import shipped
from noisescale.paper.stages import verdicts_of


@cache
def judged() -> dict[str, Any]:
    """The shipped data, judged, nothing drawn."""
    found = {}
    for section in SECTIONS.values():
        if (kept := shipped(section)) is not None:
            early = judge_first_seeds(section, kept.data)
            findings = section.judge(kept.data)
            found[section.id] = Shown(findings, (), kept.data.at.seeds, False, "", early)
    return verdicts_of(found)


def told(row: dict[str, Any]) -> str:
    """A verdict, or that there is none because nothing is shipped."""
    return str(row["verdict"].value) if row["measured"] is not None else "not measured"


def headline_passage() -> str:
    """How many hold."""
    rows = judged()["claims"]
    seen = counts(rows)
    seeds: dict[int, list[str]] = {}
    for section in SECTIONS.values():
        if (kept := shipped(section)) is not None:
            seeds.setdefault(kept.data.at.seeds, []).append(section.id)
    by_seeds = "; ".join(f"{n} for {', '.join(names)}" for n, names in sorted(seeds.items()))
    told = (
        f"**{seen[Verdict.REPRODUCED]} reproduced, {seen[Verdict.NOT_REPRODUCED]} not reproduced, "
        f"{seen[Verdict.UNDECIDED]} open**: {headline(rows)}. Seeds by section: {by_seeds}."
    )
    return "\n".join(textwrap.wrap(told, 108))


def claims_passage() -> str:
    """A line a claim of the paper's."""
    return _table(("claim", "section", "the paper says", "verdict"), own=False)


def own_passage() -> str:
    """A line a claim of our own."""
    return _table(("claim", "section", "we say", "verdict"), own=True)


def _table(head: tuple[str, ...], *, own: bool) -> str:
    verdicts = {row["id"]: told(row) for row in judged()["claims"] if row["primary"]}
    lines = [f"| {' | '.join(head)} |", "|---|---|---|---|"]
    for claim in all_claims():
        if claim.own == own:
            mark = {"": "", "all": " *(identity)*"}.get(
                claim.identity, f" *(identity: {claim.identity})*"
            )
            lines.append(
                f"| {claim.id} | {claim.section} | {claim.claim}{mark} | {verdicts[claim.id]} |"
            )
    return "\n".join(lines)


def readings_passage() -> str:
    """For each claim that has readings: both verdicts, and what they mean."""
    lines = ["| claim | first verdict | reading | what is now believed |", "|---|---|---|---|"]
    for row in judged()["meanings"]:
        seen = ", ".join(f"{name}: {verdict}" for name, verdict in row["readings"].items())
        lines.append(f"| {row['id']} | {row['verdict']} | {seen} | {row['meaning']} |")
    return "\n".join(lines)


def second_passage() -> str:
    """Where second statistics, or the seeds that came later, would change a first verdict."""
    rows = [row for row in judged()["second_statistics"] if row["primary"]]
    changed = [row for row in rows if row["changes"]]
    lines = [
        f"Of {len(rows)} claims judged again {len(rows) - len(changed)} keep their verdict:",
        "",
        "| claim | first | second | seeds 0 to 2 | measured |",
        "|---|---|---|---|---|",
    ]
    for row in changed:
        error = "" if row["uncertainty"] is None else f" (± {in_words(row['uncertainty'])})"
        lines.append(
            f"| {row['id']} | {row['first']} | {row['second']} "
            f"| {row['first_seeds'] or 'as first'} | {in_words(row['measured'])}{error} |"
        )
    return "\n".join(lines)


PASSAGES = {
    "headline": headline_passage,
    "claims": claims_passage,
    "own-claims": own_passage,
    "readings": readings_passage,
    "second-statistics": second_passage,
}
