import numpy as np
import pytest

from noisescale.paper.claims import (
    Judgement,
    Verdict,
    all_claims,
    conclude,
    counts,
    entries,
    headline,
    result_in_words,
)

SECTIONS = {*"123456789", "10", "11", "law", "A", "C", "D", "E"}


def test_every_claim_is_there_once_with_a_section():
    claims = all_claims()
    assert [claim.id for claim in claims] == [f"C{k:02d}" for k in range(1, 47)]
    assert [claim.id for claim in claims if claim.own] == [f"C{k}" for k in range(41, 47)]
    assert {claim.section for claim in claims} == SECTIONS
    assert all(claim.claim and claim.criterion and claim.where for claim in claims)


def test_unmeasured_claims_are_undecided():
    rows = entries([])
    assert len(rows) == 46
    assert counts(rows) == {"reproduced": 0, "not reproduced": 0, "undecided": 40}
    assert counts(rows, own=True) == {"reproduced": 0, "not reproduced": 0, "undecided": 6}


def test_a_claim_may_be_judged_under_several_conventions():
    rows = entries(
        [
            Judgement("C05", Verdict.NOT_REPRODUCED, 115.0, 3.0, "raw pixels"),
            Judgement("C05", Verdict.REPRODUCED, 1.5, 0.1, "whitened", primary=False),
        ]
    )
    assert len(rows) == 47
    assert counts(rows) == {"reproduced": 0, "not reproduced": 1, "undecided": 39}


def test_identities_are_counted_apart():
    rows = entries([Judgement("C12", Verdict.REPRODUCED), Judgement("C01", Verdict.REPRODUCED)])
    assert headline(rows) == (
        "of 33 claims about the world 1 reproduced, 0 not reproduced, 32 undecided; "
        "of 7 identities 1 reproduced, 0 not reproduced, 6 undecided"
    )
    both = [counts(rows, identities=kind) for kind in (False, True)]
    assert counts(rows) == {verdict: sum(part[verdict] for part in both) for verdict in both[0]}


def test_a_judgement_of_no_claim_is_a_bug():
    with pytest.raises(ValueError, match="C99"):
        entries([Judgement("C99", Verdict.REPRODUCED)])


R, N, U = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        ([True, True], R),
        ([np.bool_(True), np.bool_(True)], R),
        ([True, np.bool_(False)], N),
        ([None, False], N),
        ([None, np.bool_(True)], U),
        ([], U),
    ],
)
def test_parts_of_a_criterion(parts, verdict):
    assert conclude("C01", parts, decidable=True, measured=1).verdict is verdict
    assert conclude("C01", parts, decidable=False, measured=1).verdict is U


@pytest.mark.parametrize(
    ("uncertainty", "told"),
    [
        (None, "0.5"),
        (0.1, "0.5 ± 0.1"),
        ({"95 % interval": [0.25, 0.75]}, "0.5 (uncertainty: 95 % interval: [0.25, 0.75])"),
    ],
)
def test_results_in_words(uncertainty, told):
    assert result_in_words({"measured": 0.5, "uncertainty": uncertainty}) == told
