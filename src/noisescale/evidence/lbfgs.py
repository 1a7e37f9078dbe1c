"""L-BFGS for long vectors and for costs with kinks.

With the last pairs s_k = u_{k+1} - u_k and y_k = g_{k+1} - g_k as the rows of S and Y, R the upper
triangle of S Y', D its diagonal and c = s.y/y.y of the newest, the inverse Hessian is (Byrd,
Nocedal and Schnabel, 1994, in rows)

    H g = c g + S' R^-T ((D + c Y Y') q - c Y g) - c Y' q,    q = R^-1 S g.

S g and Y g of one gradient less those of the one before are S y and Y y, so that a step reads the
pairs twice in all. It has the length t along d when it meets the weak conditions of Wolfe,

    C(u + t d) <= C(u) + 1e-4 t g.d,    g(u + t d).d >= 0.9 g.d,

found by doubling and bisection, which finds one beside a kink as well (Lewis and Overton, 2013).
Where the fall drowns in rounding, a shorter gradient does in place of the first.

SciPy's L-BFGS-B, which is made for bounds, spends more on its own algebra than on the gradient of
the paper's network on 1,000 examples (636,010 parameters, ten pairs); this spends less.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

Array = NDArray[np.float64]
Function = Callable[[Array], tuple[float, Array]]

_ARMIJO, _WOLFE = 1e-4, 0.9
_TRIES = 30  # points on a line
_BLOCK = 8_192  # numbers of a vector at once
_ROUNDING = 1e-15  # of a value, relative


def products(A: Array, g: Array) -> Array:
    """A g over the last axis of A, an inner product for one vector.

    In blocks that BLAS does on one thread: beside other work its threads wait for each other ten
    times as long as a product takes (measured: 8 ms in place of 0.1 for two vectors of 636,010).
    """
    parts = [A[..., k : k + _BLOCK] @ g[k : k + _BLOCK] for k in range(0, len(g), _BLOCK)]
    return np.asarray(np.sum(parts, axis=0))


def _mixed(weights: Array, A: Array) -> Array:
    """weights A, likewise."""
    parts = [weights @ A[:, k : k + _BLOCK] for k in range(0, A.shape[1], _BLOCK)]
    return np.concatenate(parts)


class Pairs:
    """The last ``memory`` pairs, their products, and those with the present gradient."""

    def __init__(self, n: int, memory: int) -> None:
        self.S, self.Y = np.empty((2, memory, n))
        self.SY, self.YY = np.zeros((2, memory, memory))
        self.Sg, self.Yg = np.zeros((2, memory))
        self.order: list[int] = []  # rows in use, the newest last

    def add(self, s: Array, y: Array, g: Array) -> None:
        """A step, the change of the gradient along it, and the gradient now."""
        n = len(self.order)
        Sg, Yg = self.Sg.copy(), self.Yg.copy()
        self.Sg[:n], self.Yg[:n] = products(self.S[:n], g), products(self.Y[:n], g)
        row = n if n < len(self.S) else self.order.pop(0)
        self.order.append(row)
        self.SY[:, row] = self.Sg - Sg
        self.YY[:, row] = self.YY[row] = self.Yg - Yg
        self.S[row], self.Y[row] = s, y
        self.SY[row, row], self.YY[row, row] = products(s, y), products(y, y)
        self.Sg[row], self.Yg[row] = products(s, g), products(y, g)

    def direction(self, g: Array) -> Array:
        """-H g."""
        rows = self.order
        if not rows:
            return -g
        R = self.SY[np.ix_(rows, rows)]
        D, YY = np.diag(R), self.YY[np.ix_(rows, rows)]
        c = D[-1] / YY[-1, -1]
        q = solve_triangular(R, self.Sg[rows])
        middle = solve_triangular(R, D * q + c * (YY @ q - self.Yg[rows]), trans=1)
        of_s, of_y = np.zeros((2, len(rows)))
        of_s[rows], of_y[rows] = middle, c * q
        d = _mixed(of_y, self.Y[: len(rows)])
        d -= _mixed(of_s, self.S[: len(rows)])
        d -= c * g
        return d


def lbfgs(
    function: Function, u: Array, value: float, slope: Array, *, memory: int = 10
) -> Iterator[tuple[Array, float, Array]]:
    """Points of falling value after ``u``, each with its value and gradient.

    ``function`` gives both; ``value`` and ``slope`` are those of ``u``. It ends where no step of
    the kind above is found: at a minimum, to rounding.

    >>> points = lbfgs(lambda u: (0.5 * u @ u, u), np.array([0.6, 0.8]), 0.5, np.array([0.6, 0.8]))
    >>> [float(value) for _, value, _ in points]
    [0.0]
    """
    pairs = Pairs(len(u), memory)
    while True:
        d = pairs.direction(slope)
        along = float(products(slope, d))
        if not along < 0:
            return
        # Without a pair the length of the gradient says nothing about that of a step.
        first = 1.0 if pairs.order else min(1.0, (-along) ** -0.5)
        found = _step(function, u, value, slope, d, first)
        if found is None:
            return
        there, value, g = found
        pairs.add(there - u, g - slope, g)
        u, slope = there, g
        yield u, value, slope
        newest = pairs.order[-1]
        if not pairs.SY[newest, newest] > 0:  # as the second condition has it, but for rounding
            return


def _step(
    function: Function, u: Array, value: float, slope: Array, d: Array, t: float
) -> tuple[Array, float, Array] | None:
    """A step along ``d`` that meets both conditions, the last point tried."""
    along, length = float(products(slope, d)), float(products(slope, slope))
    low, high = 0.0, np.inf
    for _ in range(_TRIES):
        there = u + t * d
        after, g = function(there)
        falls = after < value and after <= value + _ARMIJO * t * along
        drowns = abs(after - value) <= _ROUNDING * abs(value) and float(products(g, g)) < length
        if not (falls or drowns):
            high = t
        elif float(products(g, d)) < _WOLFE * along:
            low = t
        else:
            return there, after, g
        t = 2 * low if high == np.inf else 0.5 * (low + high)
        if not low < t < high:
            return None
    return None
