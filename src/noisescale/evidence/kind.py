"""What kind of number a log evidence is, and hence what may be said with it.

A Laplace evidence looks at one mode. Only a linear model under a log-concave likelihood has no
other, so that its odds are those of the model; a deep network's mode is one of many, and a point
that is not a minimum has a neighbourhood only. Sampling and prequential coding look at all modes.
"""

from enum import StrEnum


class Kind(StrEnum):
    """Which evidence a number is; :func:`noisescale.compare` says which go together.

    >>> Kind.ONE_MODE.bears_odds, Kind.LINEAR.bears_odds
    (False, True)
    """

    LINEAR = "linear model"  # Laplace at the only mode
    ONE_MODE = "one mode"  # Laplace at one of many
    NEIGHBOURHOOD = "neighbourhood"  # Laplace's formula at a point that need not be a mode
    UNCHECKED = "unchecked"  # a curvature from outside, without a gradient to check the point by
    REFINED = "refined"  # importance sampling from the Laplace Gaussian
    ANNEALED = "annealed"  # annealed importance sampling
    PREQUENTIAL = "prequential"  # of a training procedure

    @property
    def bears_odds(self) -> bool:
        """Whether odds may be read off it."""
        return self in (Kind.LINEAR, Kind.REFINED, Kind.ANNEALED, Kind.PREQUENTIAL)


AT = ("check", "map", "point")
