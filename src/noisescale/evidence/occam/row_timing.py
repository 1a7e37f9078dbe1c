"""What rows take, from few of them: for predictions of time."""

import math
from collections.abc import Callable

import numpy as np

from noisescale.evidence.problem import Facts, Problem
from noisescale.evidence.rows import Rows
from noisescale.evidence.timing import whole

_FEWEST = 4  # examples of the smallest block that is measured


def sample_rows(facts: Facts, n: int, *, among: int = 1) -> Rows:
    """The first ``n`` rows, to measure with; their coefficients are made up.

    ``among`` so many examples at least, the first few rows of each, if one would have them all.
    """
    each = min(facts.rows_an_example, -(-n // min(among, facts.N)))
    return Rows(np.arange(n) // each, np.full((n, facts.C), 1 / facts.C))


def seconds_of_rows(
    problem: Problem,
    facts: Facts,
    run: Callable[[Rows], Callable[[], object]],
    *,
    degree: int = 1,
    at_least: int = 1,
    slots: bool = False,
) -> float:
    """Seconds that ``run(rows)()`` takes with all rows, from few of them, ``at_least`` so many.

    Where programs are compiled for the shape of a block, in whole blocks. ``slots`` if blocks take
    some rows of several examples where one has too many (:func:`~..rows.by_slots`).
    """
    block = problem.rows_at_once()
    few = block if problem.compiles else min(_FEWEST * facts.rows_an_example, block)
    among = math.isqrt(block) if slots and facts.rows_an_example > block else 1
    return whole(
        lambda n: run(sample_rows(facts, n, among=among)),
        facts.rows,
        first=max(few, at_least),
        step=block if problem.compiles else 1,
        degree=degree,
    )
