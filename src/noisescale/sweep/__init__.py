"""Many runs, nothing lost: plans, a store, and engines that execute one into the other."""

from noisescale.jobs.store import RunStore
from noisescale.sweep.config import RunConfig
from noisescale.sweep.peak import Peak, find_peak
from noisescale.sweep.plan import load_plan, make_plan
from noisescale.sweep.rules import ScalingRule, fit_scaling_rule
from noisescale.sweep.run import run_sweep

__all__ = [
    "Peak",
    "RunConfig",
    "RunStore",
    "ScalingRule",
    "find_peak",
    "fit_scaling_rule",
    "load_plan",
    "make_plan",
    "run_sweep",
]
