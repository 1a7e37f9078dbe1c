"""How often the tuner's comparison errs, how often it succeeds, and what it costs in seeds.

A comparison looks at 3, 5, 7, 9 seeds and may end at each. Its level is the share of comparisons
that take a recipe which loses exactly the tolerance: 5 % is promised. Its power is the share that
take one which loses nothing. Differences are normal with standard deviation 1, and "usual" is the
spread that the tuner believes them to have from its first stage. "Before" is the rule of the first
versions, kept here for the comparison: 5 % at each look, and the usual spread for four differences
more.

Some seconds, seeded; ``python tools/measured.py --write`` puts the table into docs/tuning.md.
"""

import json
from pathlib import Path

import numpy as np
from scipy import special

from noisescale.tune.comparison import ERROR, error_of_a_look, looks

RESULTS = Path(__file__).parent / "results" / "tune_level.json"
SCHEDULE = looks(3, 9)
PATHS = 200_000


def now(d, usual, schedule):
    """s, t(1 - alpha_K) s and t(.95) s of differences (paths, n), as in tune/comparison.py."""
    n = d.shape[1]
    s = np.maximum(d.std(axis=1, ddof=1), usual / 2) / np.sqrt(n)
    return (s * special.stdtrit(n - 1, 1 - level) for level in (error_of_a_look(schedule), ERROR))


def before(d, usual, schedule):
    """The same as it was: the usual spread pooled with that of the differences."""
    n, more = d.shape[1], 4 * (usual > 0)
    squares = (n - 1) * d.var(axis=1, ddof=1) + more * usual**2
    reach = np.sqrt(squares / (n - 1 + more) / n) * special.stdtrit(n - 1 + more, 0.95)
    return reach, reach


def simulate(d, tolerance, usual=0.0, schedule=SCHEDULE, rule=now):
    """(taken, seeds) of each path of differences (paths, n), of which each look sees the first."""
    taken = np.zeros(len(d), bool)
    seeds = np.full(len(d), schedule[-1])
    going = np.ones(len(d), bool)
    for n in schedule:
        mean = d[:, :n].mean(axis=1)
        reach, futile = rule(d[:, :n], usual, schedule)
        held, fell = mean - reach >= -tolerance, mean + futile < -tolerance
        taken |= going & held
        seeds[going & (held | fell)] = n
        going &= ~(held | fell)
    return taken, seeds


def row(name, rule, usual):
    """The level, and power with its mean seeds at a tolerance of one and two spreads."""
    d = np.random.default_rng(0).normal(size=(PATHS, SCHEDULE[-1]))
    found = {"rule": name, "usual": usual}
    found["level"] = float(simulate(d - 1, 1.0, usual, rule=rule)[0].mean())
    for tolerance in (1, 2):
        taken, seeds = simulate(d, float(tolerance), usual, rule=rule)
        found |= {
            f"power {tolerance}": float(taken.mean()),
            f"seeds {tolerance}": float(seeds.mean()),
        }
    return found


def main():
    rows = [
        row(name, rule, usual)
        for name, rule in (("before", before), ("now", now))
        for usual in (0.0, 0.5, 1.0, 2.0)
    ]
    for one in rows:
        print(one)
    document = {"looks": SCHEDULE, "paths": PATHS, "rows": rows}
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
