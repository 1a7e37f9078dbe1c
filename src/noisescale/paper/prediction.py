"""A rule is worth what it predicts: the best batch size at a setting that no fit has seen."""

from noisescale.paper.runs import Runs
from noisescale.paper.scaling import describe_place, effort_of, run_until_interior, setting
from noisescale.paper.section import Circumstances, Context, Measurement
from noisescale.sweep.peak import find_peak
from noisescale.sweep.rules import ScalingRule

# Away from the settings of figures 5 to 7 in all three quantities at once.
_LEARNING_RATE, _N_TRAIN, _MOMENTUM = 0.5, 4_000, 0.95


def measure_held_out(context: Context) -> Runs:
    """The runs around the best batch size at the held-out setting."""
    held_out = setting(
        steps=_steps(context.at),
        learning_rate=_LEARNING_RATE,
        n_train=_N_TRAIN,
        momentum=_MOMENTUM,
    )
    return run_until_interior(context, [held_out])


def compare_prediction(
    at: Circumstances, rule: ScalingRule, held_out: Runs
) -> tuple[Measurement, ...]:
    """B_opt predicted from the noise scale at the peaks of ``rule``, and measured."""
    where = f"ε = {_LEARNING_RATE:g}, N = {_N_TRAIN:,}, m = {_MOMENTUM:g}"
    predicted = "nothing: no peak of figure 5 is resolved"
    if rule.optimal_noise_scale is not None:
        predicted = str(
            rule.predict_batch_size(
                learning_rate=_LEARNING_RATE, n_train=_N_TRAIN, momentum=_MOMENTUM
            )
        )
    return (
        Measurement(
            f"B_opt predicted at {where}", predicted, "from the noise scale at the peaks above"
        ),
        Measurement(
            f"B_opt measured at {where}",
            describe_place(find_peak(held_out.frame)),
            f"{at.seeds} seeds, {_steps(at):,} updates",
        ),
    )


def _steps(at: Circumstances) -> int:
    return round(effort_of(at).steps / _LEARNING_RATE)
