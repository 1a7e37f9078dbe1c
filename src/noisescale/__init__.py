"""noisescale: should I believe this minimum, and how loud is my SGD?

Public names load what they need on first use, so that ``import noisescale`` is instant and the
commands that compute nothing never wait for JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from noisescale._version import __version__
from noisescale.errors import InputError

if TYPE_CHECKING:
    from noisescale.evidence import (
        Comparison,
        Evidence,
        EvidenceCurve,
        Likelihood,
        NotAMinimumWarning,
        Spectrum,
        compare,
        evidence_curve,
        gaussian,
        log_evidence,
        log_evidence_from_operator,
        permutation_degeneracy,
        posterior_predict,
        spectrum,
    )
    from noisescale.jobs.progress import Progress
    from noisescale.noise import AdamRecipe, Recipe, noise_scale
    from noisescale.noise.gradients import GradientNoise, gradient_noise
    from noisescale.noise.monitor import NoiseScaleMonitor
    from noisescale.noise.posterior import PosteriorSamples, langevin
    from noisescale.noise.sde import simulate_sgd_sde
    from noisescale.noise.spectrum import NoiseSpectrum
    from noisescale.sweep import (
        Peak,
        RunConfig,
        RunStore,
        ScalingRule,
        find_peak,
        fit_scaling_rule,
        load_plan,
        make_plan,
        run_sweep,
    )
    from noisescale.training import (
        DenseNetwork,
        Evaluation,
        TrainResult,
        Waypoint,
        logistic_regression,
        paper_network,
        softmax_regression,
        train,
    )
    from noisescale.tune import TuneResult, tune_large_batch

# Public names by the subpackage that holds them, grouped by the question they answer.
_HOME = {
    # Should I believe this minimum?
    "log_evidence": "evidence",
    "log_evidence_from_operator": "evidence",
    "Evidence": "evidence",
    "evidence_curve": "evidence",
    "EvidenceCurve": "evidence",
    "NotAMinimumWarning": "evidence",
    "spectrum": "evidence",
    "Spectrum": "evidence",
    "compare": "evidence",
    "Comparison": "evidence",
    "posterior_predict": "evidence",
    "permutation_degeneracy": "evidence",
    "gaussian": "evidence",
    "Likelihood": "evidence",
    # How loud is my SGD?
    "noise_scale": "noise",
    "Recipe": "noise",
    "AdamRecipe": "noise",
    "gradient_noise": "noise.gradients",
    "GradientNoise": "noise.gradients",
    "NoiseScaleMonitor": "noise.monitor",
    "langevin": "noise.posterior",
    "PosteriorSamples": "noise.posterior",
    "simulate_sgd_sde": "noise.sde",
    "NoiseSpectrum": "noise.spectrum",
    # As large a batch as costs nothing.
    "tune_large_batch": "tune",
    "TuneResult": "tune",
    # Many runs, nothing lost.
    "run_sweep": "sweep",
    "Progress": "jobs.progress",
    "make_plan": "sweep",
    "load_plan": "sweep",
    "RunConfig": "sweep",
    "RunStore": "sweep",
    "find_peak": "sweep",
    "Peak": "sweep",
    "fit_scaling_rule": "sweep",
    "ScalingRule": "sweep",
    # Train as the paper does.
    "train": "training",
    "TrainResult": "training",
    "Evaluation": "training",
    "Waypoint": "training",
    "DenseNetwork": "training",
    "paper_network": "training",
    "softmax_regression": "training",
    "logistic_regression": "training",
}
_SUBPACKAGES = ("data", "evidence", "noise", "paper", "sklearn", "sweep", "training", "tune")

__all__ = [
    "AdamRecipe",
    "Comparison",
    "DenseNetwork",
    "Evaluation",
    "Evidence",
    "EvidenceCurve",
    "GradientNoise",
    "InputError",
    "Likelihood",
    "NoiseScaleMonitor",
    "NoiseSpectrum",
    "NotAMinimumWarning",
    "Peak",
    "PosteriorSamples",
    "Progress",
    "Recipe",
    "RunConfig",
    "RunStore",
    "ScalingRule",
    "Spectrum",
    "TrainResult",
    "TuneResult",
    "Waypoint",
    "__version__",
    "compare",
    "evidence_curve",
    "find_peak",
    "fit_scaling_rule",
    "gaussian",
    "gradient_noise",
    "langevin",
    "load_plan",
    "log_evidence",
    "log_evidence_from_operator",
    "logistic_regression",
    "make_plan",
    "noise_scale",
    "paper_network",
    "permutation_degeneracy",
    "posterior_predict",
    "run_sweep",
    "simulate_sgd_sde",
    "softmax_regression",
    "spectrum",
    "train",
    "tune_large_batch",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(f"noisescale.{_HOME[name]}"), name)
    if name in _SUBPACKAGES:
        return import_module(f"noisescale.{name}")
    raise AttributeError(f"module 'noisescale' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_SUBPACKAGES]
