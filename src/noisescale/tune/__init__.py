"""Large batches without loss of accuracy: appendix E of the paper, for any training function."""

from noisescale.tune.critical import measure_critical_batch
from noisescale.tune.critical_result import BatchOutcome, CriticalBatch
from noisescale.tune.jax_function import train_function
from noisescale.tune.large_batch import tune_large_batch
from noisescale.tune.procedure import TuneWarning
from noisescale.tune.result import Decision, TuneResult

__all__ = [
    "BatchOutcome",
    "CriticalBatch",
    "Decision",
    "TuneResult",
    "TuneWarning",
    "measure_critical_batch",
    "train_function",
    "tune_large_batch",
]
