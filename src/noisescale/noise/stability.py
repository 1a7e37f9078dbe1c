"""How large a step of Langevin dynamics or SGD may be: beyond 2 (1 + m)/L it diverges."""

from noisescale.checks import check_momentum, check_number
from noisescale.errors import InputError


def largest_step(curvature: float, momentum: float = 0.0) -> float:
    """The step size beyond which a direction of this ``curvature`` diverges: 2 (1 + m)/L."""
    L = check_number("curvature", curvature, "above 0", lambda v: v > 0)
    return 2 * (1 + check_momentum(momentum)) / L


def check_step(step_size: float, curvature: float, momentum: float) -> float:
    """``step_size`` if directions of this curvature are stable under it."""
    limit = largest_step(curvature, momentum)
    if step_size >= limit:
        raise InputError(
            f"step_size must be below {limit:.3g}, where the largest curvature {curvature:.3g} "
            f"makes the dynamics unstable, got {step_size:g}."
        )
    return step_size
