"""The public names, once: type checkers read this file, and ``__init__.py`` loads by it."""

# Should I believe this minimum?
from noisescale.evidence import (
    log_evidence as log_evidence,
    log_evidence_from_operator as log_evidence_from_operator,
    Evidence as Evidence,
    Kind as Kind,
    map_estimate as map_estimate,
    MapEstimate as MapEstimate,
    MapStatus as MapStatus,
    NotAMinimumWarning as NotAMinimumWarning,
    RefinedEvidence as RefinedEvidence,
    annealed_evidence as annealed_evidence,
    AnnealedEvidence as AnnealedEvidence,
    prequential_evidence as prequential_evidence,
    PrequentialEvidence as PrequentialEvidence,
    fit_function as fit_function,
    evidence_curve as evidence_curve,
    EvidenceCurve as EvidenceCurve,
    spectrum as spectrum,
    Spectrum as Spectrum,
    compare as compare,
    Comparison as Comparison,
    posterior_predict as posterior_predict,
    permutation_degeneracy as permutation_degeneracy,
    gaussian as gaussian,
    categorical as categorical,
    prior_precision_of as prior_precision_of,
    weight_decay_of as weight_decay_of,
    Likelihood as Likelihood,
)

# How loud is my SGD?
from noisescale.noise import (
    noise_scale as noise_scale,
    Recipe as Recipe,
    AdamRecipe as AdamRecipe,
    BatchSchedule as BatchSchedule,
)
from noisescale.noise.batch_law import (
    BatchSizeLaw as BatchSizeLaw,
    BestBatch as BestBatch,
    PAPER_LAW as PAPER_LAW,
)
from noisescale.noise.gradients import (
    gradient_noise as gradient_noise,
    GradientNoise as GradientNoise,
)
from noisescale.noise.spectrum import NoiseSpectrum as NoiseSpectrum
from noisescale.noise.monitor import NoiseScaleMonitor as NoiseScaleMonitor
from noisescale.noise.posterior import langevin as langevin, PosteriorSamples as PosteriorSamples
from noisescale.noise.sde import simulate_sgd_sde as simulate_sgd_sde

# As large a batch as costs nothing.
from noisescale.tune import (
    tune_large_batch as tune_large_batch,
    TuneResult as TuneResult,
    measure_critical_batch as measure_critical_batch,
    CriticalBatch as CriticalBatch,
)

# Many runs, nothing lost.
from noisescale.sweep import (
    run_sweep as run_sweep,
    make_plan as make_plan,
    load_plan as load_plan,
    RunConfig as RunConfig,
    RunStore as RunStore,
    find_peak as find_peak,
    Peak as Peak,
    fit_scaling_rule as fit_scaling_rule,
    ScalingRule as ScalingRule,
)
from noisescale.sweep.batch_law import fit_batch_size_law as fit_batch_size_law
from noisescale.jobs.progress import Progress as Progress

# Train as the paper does.
from noisescale.training import (
    train as train,
    TrainResult as TrainResult,
    Evaluation as Evaluation,
    Waypoint as Waypoint,
    DenseNetwork as DenseNetwork,
    paper_network as paper_network,
    softmax_regression as softmax_regression,
    logistic_regression as logistic_regression,
)

# What is wrong with your input, and the version.
from noisescale.errors import InputError as InputError
from noisescale._version import __version__ as __version__

# Subpackages.
from noisescale import (
    data as data,
    evidence as evidence,
    lightning as lightning,
    noise as noise,
    optax as optax,
    paper as paper,
    sklearn as sklearn,
    skorch as skorch,
    sweep as sweep,
    torch as torch,
    training as training,
    transformers as transformers,
    tune as tune,
)
