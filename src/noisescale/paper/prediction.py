"""A rule is worth what it predicts: the best batch size at a setting that no fit has seen."""

from noisescale.paper.scaling import effort_of, run_until_interior, setting
from noisescale.paper.section import Context, Measurement
from noisescale.sweep.peak import find_peak
from noisescale.sweep.rules import ScalingRule

# Away from the settings of figures 5 to 7 in all three quantities at once.
HELD_OUT = {"learning_rate": 0.5, "n_train": 4_000, "momentum": 0.95}


def check_prediction(context: Context, rule: ScalingRule) -> tuple[Measurement, ...]:
    """Predict B_opt from the noise scale at the peaks of ``rule``, then measure it."""
    steps = round(effort_of(context).steps / HELD_OUT["learning_rate"])
    runs = run_until_interior(context, [setting(steps=steps, **HELD_OUT)])  # type: ignore[arg-type]
    peak = find_peak(runs.frame)
    where = "ε = {learning_rate:g}, N = {n_train:,}, m = {momentum:g}".format(**HELD_OUT)
    told = "nothing: no peak of figure 5 is resolved"
    if rule.optimal_noise_scale is not None:
        told = str(rule.predict_batch_size(**HELD_OUT))  # type: ignore[arg-type]
    found = peak.undetermined
    if peak.fitted is not None:
        interval = "" if peak.low is None else f" [{peak.low:.3g}, {peak.high:.3g}]"
        found = f"{peak.fitted:.3g}{interval}"
    how = f"{context.seeds} seeds, {steps:,} updates"
    return (
        Measurement(f"B_opt predicted at {where}", told, "from the noise scale at the peaks above"),
        Measurement(f"B_opt measured at {where}", str(found), how),
    )
