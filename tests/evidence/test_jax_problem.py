"""Models, data and likelihoods that users give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import noisescale as ns
from noisescale.evidence.jax_problem import jax_problem
from oracles.models import NETWORK, affine, data, linear, params_of


@pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")
def test_the_last_layer_alone():
    params, pair = params_of(NETWORK), data()
    last = ns.log_evidence(
        NETWORK, params, pair, prior_precision=0.5, select=lambda path: path.startswith("2/")
    )
    hidden = np.asarray(
        jax.nn.relu(
            jax.nn.relu(pair[0] @ params[0]["w"] + params[0]["b"]) @ params[1]["w"] + params[1]["b"]
        )
    )
    linear = ns.softmax_regression(6, 4)
    alone = ns.log_evidence(linear, params[2:], (hidden, pair[1]), prior_precision=0.5)
    assert last.n_params == 28
    assert last.log_evidence == pytest.approx(alone.log_evidence, rel=1e-6)
    with pytest.raises(ns.InputError, match="select chooses none of the parameters: 0/b, 0/w"):
        ns.log_evidence(NETWORK, params, pair, prior_precision=0.5, select=lambda path: False)


def test_nan_within_the_network_is_told():
    def broken(params, x):
        return jnp.log(params["w"] * x[:, :4])

    with pytest.raises(ns.InputError, match="outputs or gradients are not finite"):
        ns.log_evidence(broken, {"w": np.ones(4)}, data(), prior_precision=1.0, method="dual")


def test_bad_data(fitted):
    params, (x, y), _ = fitted

    def refuse(data, message, params=params):
        with pytest.raises(ns.InputError, match=message):
            ns.log_evidence(affine, params, data, prior_precision=1.0)

    holed = x.copy()
    holed[3, 1] = np.nan
    refuse((holed, y), r"data x holds nan at \[3, 1\]")
    refuse((x, y + 1), "data labels must lie in 0..2")
    refuse((x, y[1:]), "60 examples in x but 59 labels in y")
    refuse((x[:, :2], y), "apply_fn does not accept these params")
    refuse((x, y), "params holds values that are not finite", {**params, "b": np.full(3, np.nan)})
    refuse((x * 1e300, y), "too large to compute with")


class TestUsersOwnLikelihood:
    """A shape that broadcasts would give a wrong number without a word."""

    data = np.ones((5, 2)), np.arange(5.0)

    def refuse(self, message, nll, width=()):
        for curvature in ("ggn", "hessian"):
            with pytest.raises(ns.InputError, match=message):
                ns.log_evidence(
                    linear,
                    np.ones((2, *width)),
                    self.data,
                    prior_precision=1.0,
                    likelihood=nll,
                    curvature=curvature,
                )

    def test_broadcasts_are_refused(self):
        self.refuse("must return one number an example", lambda f, y: 0.5 * (f - y) ** 2, (1,))

    def test_means_are_refused(self):
        self.refuse("must return one number an example", lambda f, y: jnp.mean(f[:, 0] - y) ** 2)

    def test_what_does_not_fit_is_refused(self):
        self.refuse("likelihood does not accept outputs", lambda f, y: f @ y, (3,))

    @pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")
    @pytest.mark.parametrize("prior", [0.1, 100.0])
    def test_a_nll_that_is_not_convex_is_counted_right(self, prior):
        def cauchy(f, y):
            return jnp.log1p((f[:, 0] - y) ** 2)

        # For a linear model Gauss-Newton is the Hessian.
        a, b = (
            ns.log_evidence(
                linear,
                np.array([3.0, 3.0]),
                self.data,
                prior_precision=prior,
                likelihood=cauchy,
                curvature=curvature,
                method="dense",
            )
            for curvature in ("ggn", "hessian")
        )
        assert a.log_evidence == pytest.approx(b.log_evidence, rel=1e-9)
        assert a.n_negative == b.n_negative > 0


@pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")
def test_scalar_arrays_and_outputs_without_an_axis_are_taken(fitted):
    params, data, _ = fitted
    plain = ns.log_evidence(affine, params, data, prior_precision=0.5)
    for scalar in (jnp.array(0.5), np.array(0.5), np.float32(0.5)):
        again = ns.log_evidence(affine, params, data, prior_precision=scalar)
        assert again.log_evidence == plain.log_evidence
    x, y = data[0], data[1] % 2
    a, b = (
        ns.log_evidence(f, np.full(4, 1e-3), (x, y), prior_precision=1e4, likelihood="bernoulli")
        for f in (linear, lambda w, x: (x @ w[:, None]).squeeze())
    )
    assert a.log_evidence == pytest.approx(b.log_evidence, rel=1e-12)


def test_the_global_precision_is_left_alone(fitted):
    params, data, _ = fitted
    ns.log_evidence(affine, params, data, prior_precision=0.5)
    assert jnp.ones(1).dtype == jnp.float32


def test_operations_that_promote_nothing():
    """``lax`` convolutions want one dtype: float32 images are widened wherever params are."""

    def apply(params, x):
        images = x.reshape(-1, 4, 4, 1)
        numbers = ("NHWC", "HWIO", "NHWC")
        z = jax.lax.conv_general_dilated(images, params, (2, 2), "SAME", dimension_numbers=numbers)
        return z.reshape(len(x), -1)

    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(2, 2, 1, 1)).astype(np.float32)
    x, y = rng.normal(size=(9, 16)).astype(np.float32), rng.integers(4, size=9)
    narrow, wide = (
        jax_problem(apply, kernel.astype(dtype), (x.astype(dtype), y), "categorical")
        for dtype in (np.float32, np.float64)
    )
    assert narrow.facts() == wide.facts()
    np.testing.assert_array_equal(narrow.roots(), wide.roots())
