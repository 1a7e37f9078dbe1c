"""Rows, and the blocks that they are gone through in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisescale.evidence.rows import Rows, by_slots


@given(
    counts=st.lists(st.integers(1, 7), min_size=1, max_size=9),
    size=st.integers(1, 40),
)
def test_every_row_comes_once_and_every_example_is_new_once(counts, size):
    examples = np.repeat(np.arange(len(counts)) * 2, counts)
    rows = Rows(examples, np.arange(len(examples), dtype=float)[:, None])
    blocks = list(by_slots(rows, size))
    seen = np.concatenate([block.values[:, 0] for _, block in blocks])
    assert sorted(seen) == list(range(len(rows)))
    assert all((np.diff(block.examples) >= 0).all() for _, block in blocks)
    new = np.concatenate([np.unique(block.examples) for first, block in blocks if first])
    assert sorted(new) == sorted(set(examples))


def test_a_block_has_rows_of_several_examples_where_one_has_too_many():
    rows = Rows(np.repeat(np.arange(8), 100), np.zeros((800, 1)))
    blocks = [block for _, block in by_slots(rows, 16)]
    assert {len(np.unique(block.examples)) for block in blocks} == {4}
    assert {len(block) for block in blocks} == {16}
    blocks = [block for _, block in by_slots(rows, 250)]
    assert {len(np.unique(block.examples)) for block in blocks} == {8}  # not two with all of theirs
    assert max(map(len, blocks)) == 248


@pytest.mark.parametrize("chosen", [slice(2, 5), np.array([0, 3]), [True, False] * 3])
def test_rows_of_tokens_are_those_of_a_matrix_with_blocks(chosen):
    roots = np.random.default_rng(0).normal(size=(1, 3, 2, 4))
    rows = Rows.of(roots)
    whole = np.zeros((6, 12))
    for t in range(3):
        whole[2 * t : 2 * t + 2, 4 * t : 4 * t + 4] = roots[0, t]
    np.testing.assert_array_equal(rows.coefficients, whole)
    np.testing.assert_array_equal(rows[chosen].coefficients, whole[chosen])
