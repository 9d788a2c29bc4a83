"""SGRLD, SGHMC, SGRHMC and SGMGT: laws of their discretised chains, limits, and what holds always."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from bnmf.domains import CoRV, Domain, Ito, Mirror
from bnmf.random import Noise
from bnmf.run import load_tensors, save_tensors
from bnmf.samplers import Sampler, State
from bnmf.samplers.kinetics import MonomialGamma
from bnmf.samplers.sghmc import SGHMC
from bnmf.samplers.sgld import SGLD
from bnmf.samplers.sgmgt import SGMGT
from bnmf.samplers.sgnht import SGNHT, reformulated
from bnmf.samplers.sgrhmc import SGRHMC
from bnmf.samplers.sgrld import SGRLD
from bnmf.samplers.slice import NaiveSlice
from bnmf.transforms import HALF_LINE, Identity, Softplus
from tests.oracles import ERRORS, assert_moments, noise

ONE = torch.ones(1, 1, dtype=torch.float64)
Gradient = Callable[[Tensor], Tensor]


def fresh(*stream: int) -> Noise:
    return Noise(noise(*stream))


def randn(*shape: int, stream: int) -> Tensor:
    return fresh(stream).normal(torch.empty(*shape, dtype=torch.float64))


def run(
    sampler: Sampler,
    start: Tensor,
    gradient: Gradient,
    step: float,
    steps: int,
    source: Noise,
    temperature: float = 1.0,
    scale: Tensor = ONE,
    in_law: bool = False,
) -> State:
    """``in_law`` starts momenta and thermostats from their stationary law."""
    state = sampler.init(start, temperature, source)
    if in_law:
        state = sampler.resample(state, temperature, source)
    for _ in range(steps):
        state = sampler.before_gradient(state, step, scale, temperature)
        state = sampler.step(state, gradient(state.position), step, scale, temperature, source)
    return state


# -- stationary moments of the discretised chains ---------------------------------------------


@pytest.mark.parametrize(
    ("precision", "step", "friction", "temperature", "scale", "variance"),
    [
        (1.0, 0.4, 1.0, 1.0, 1.0, 0.0),
        (2.0, 0.25, 0.5, 0.4, 0.8, 0.0),
        (1.0, 0.2, 1.5, 1.0, 1.0, 4.0),
    ],
)
@pytest.mark.parametrize("known", [False, True])
def test_sghmc_on_a_gaussian(
    precision: float,
    step: float,
    friction: float,
    temperature: float,
    scale: float,
    variance: float,
    known: bool,
) -> None:
    """The linear chain's moments, with noise in the gradient that is known to it or not."""
    shape = (40_000, 1)
    source = fresh(100)
    position = source.normal(
        torch.empty(shape, dtype=torch.float64), (temperature / precision) ** 0.5
    )
    errors = fresh(101)

    def gradient(theta: Tensor) -> Tensor:
        exact = precision * theta
        return exact + errors.normal(exact, variance**0.5 / scale) if variance else exact

    sampler = SGHMC(friction, noise_estimate=variance if known else 0.0)
    scales = torch.full((len(position), 1), scale, dtype=torch.float64)
    state = run(sampler, position, gradient, step, round(30 / step), source, temperature, scales)
    a = precision * scale**2
    forcing = 2 * friction * temperature + (0.0 if known else step * variance)
    momentum = forcing / (2 * friction - friction**2 * step - friction * step**2 * a / 2)
    assert state.momentum is not None
    assert_moments(state.momentum, 0.0, momentum)
    assert_moments(state.position, 0.0, momentum * (1 - friction * step / 2) / a * scale**2)


def test_sgrhmc_with_a_constant_metric_is_sghmc_in_its_units() -> None:
    """D = d: precision a d and friction C d in theta / sqrt(d)."""
    d, a, friction, step = 0.6, 1.5, 0.9, 0.3

    def metric(theta: Tensor) -> tuple[Tensor, Tensor]:
        return torch.full_like(theta, d), torch.zeros_like(theta)

    source = fresh(102)
    start = source.normal(torch.empty(40_000, 1, dtype=torch.float64), a**-0.5)
    state = run(SGRHMC(metric, friction), start, lambda x: a * x, step, 100, source)
    c, b = friction * d, a * d
    momentum = 2 * c / (2 * c - c * c * step - c * step**2 * b / 2)
    assert state.momentum is not None
    assert_moments(state.momentum, 0.0, momentum)
    assert_moments(state.position, 0.0, momentum * (1 - c * step / 2) / b * d)


@pytest.mark.parametrize("known", [False, True])
def test_sgrhmc_takes_out_the_noise_that_it_knows_of(known: bool) -> None:
    """In its units the gradient's variance is d V: the forcing is 2 C d tau + h d (V - B)."""
    d, a, friction, step, variance = 0.6, 1.5, 1.2, 0.2, 5.0

    def metric(theta: Tensor) -> tuple[Tensor, Tensor]:
        return torch.full_like(theta, d), torch.zeros_like(theta)

    source, errors = fresh(130), fresh(131)
    start = source.normal(torch.empty(40_000, 1, dtype=torch.float64), a**-0.5)
    state = run(
        SGRHMC(metric, friction, variance if known else 0.0),
        start,
        lambda x: a * x + errors.normal(x, variance**0.5),
        step,
        150,
        source,
    )
    c, b = friction * d, a * d
    forcing = 2 * c + (0.0 if known else step * d * variance)
    momentum = forcing / (2 * c - c * c * step - c * step**2 * b / 2)
    assert state.momentum is not None
    assert_moments(state.momentum, 0.0, momentum)
    assert_moments(state.position, 0.0, momentum * (1 - c * step / 2) / b * d)


@pytest.mark.parametrize("step", [0.2, 0.05])
def test_sgrld_on_a_gamma_has_the_moments_of_its_chain(step: float) -> None:
    """D = theta on Gamma(a, b): theta' = theta (1 - eps b) + eps a + sqrt(2 eps theta) eta.

    So the mean is a / b at any step and the variance a / b^2 / (1 - eps b / 2). With a = 30 the
    chain does not meet 0.
    """
    a, b = 30.0, 1.5
    source = fresh(103)
    start = torch.full((40_000, 1), a / b, dtype=torch.float64)
    state = run(
        SGRLD(Mirror().metric), start, lambda x: b - (a - 1) / x, step, round(12 / step), source
    )
    assert_moments(state.position, a / b, a / b**2 / (1 - step * b / 2))


def variance_of(sampler: SGMGT, step: float, stream: int) -> tuple[float, float]:
    """E[theta^2] on a standard Gaussian, and its standard error, over independent entries."""
    source = fresh(104, stream)
    start = source.normal(torch.empty(150_000, 1, dtype=torch.float64))
    state = run(sampler, start, lambda x: x, step, round(12 / step), source)
    squares = state.position.square()
    return squares.mean().item(), (squares.std() / math.sqrt(len(squares))).item()


@pytest.mark.slow
def test_aboba_is_of_second_order_and_euler_of_first() -> None:
    """Halving the step divides the bias of E[theta^2] by four, and by two."""
    kinetics = MonomialGamma(1, 1.0, 3.0)
    for integrator, steps, factor in (("aboba", (0.8, 0.4), 4.0), ("euler", (0.2, 0.1), 2.0)):
        sampler = SGMGT(1.0, kinetics, integrator=integrator)  # type: ignore[arg-type]
        (first, e1), (second, e2) = (variance_of(sampler, h, i) for i, h in enumerate(steps))
        bias, half = first - 1.0, second - 1.0
        error = math.hypot(e1, factor * e2)
        # the next order is allowed a quarter of the bias
        assert abs(bias - factor * half) < ERRORS * error + 0.25 * abs(bias), (
            integrator,
            bias,
            half,
        )
        assert abs(bias) > 5 * e1, "the bias must be seen at all"


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("extra", [0.0, 0.2])
def test_sgmgt_leaves_a_gaussian_in_place(power: int, extra: float) -> None:
    """At a small step: 2 % of the variance is allowed for it, 5 % of the thermostats' law."""
    sampler = SGMGT(
        1.0,
        MonomialGamma(power),
        position_diffusion=extra,
        thermostat_diffusion=extra,
    )
    source = fresh(105, power)
    start = source.normal(torch.empty(30_000, 1, dtype=torch.float64))
    state = run(sampler, start, lambda x: x, 0.05, 120, source, in_law=True)
    assert_moments(state.position, 0.0, 1.0, slack=0.02)
    assert state.thermostat is not None
    assert_moments(state.thermostat, 1.0, 1.0, slack=0.05)  # N(s_p, gamma tau)


def test_sgmgt_absorbs_the_gradient_s_noise() -> None:
    """xi settles where SGHMC's friction would have to be; the target stays, 3 % for the step."""
    h, variance = 0.05, 20.0
    source, errors = fresh(106), fresh(107)
    start = source.normal(torch.empty(20_000, 1, dtype=torch.float64))
    sampler = SGMGT(1.0, MonomialGamma(1, softening=3.0))
    state = run(sampler, start, lambda x: x + errors.normal(x, variance**0.5), h, 400, source)
    assert_moments(state.position, 0.0, 1.0, slack=0.03)
    assert state.thermostat is not None
    assert state.thermostat.mean().item() == pytest.approx(1.0 + h * variance / 2, rel=0.05)


# -- momenta ----------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [20.0, 1.0, 0.3, 0.005])
@pytest.mark.parametrize(
    "kinetics", [MonomialGamma(1, 1.5, 3.0), MonomialGamma(2, 1.4, 5.0)], ids=["a = 1", "a = 2"]
)
def test_momenta_are_exact_draws(kinetics: MonomialGamma, temperature: float) -> None:
    """Kolmogorov and Smirnov against the distribution function of exp(-K / tau), by quadrature."""
    drawn = kinetics.sample(torch.empty(20_000, dtype=torch.float64), temperature, fresh(108))
    edge = 2.0 * float(drawn.abs().max())
    # dense where the tip is
    grid = np.sinh(np.linspace(-np.arcsinh(1e3), np.arcsinh(1e3), 200_001)) * edge / 1e3
    density = np.exp(-kinetics.energy(torch.from_numpy(grid)).numpy() / temperature)
    steps = np.diff(grid) * (density[1:] + density[:-1]) / 2
    cdf = np.concatenate([[0.0], np.cumsum(steps)]) / steps.sum()
    found = stats.kstest(drawn.numpy(), lambda x: np.interp(x, grid, cdf))
    assert found.pvalue > 1e-6


def test_resampling_draws_momenta_and_thermostats_afresh() -> None:
    """From their laws, whatever they were; the position is not touched."""
    position = randn(40_000, 1, stream=109)
    wild = torch.full_like(position, 50.0)
    for sampler, spread in ((SGNHT(0.4), None), (SGMGT(0.4, coupling=0.5), 0.5)):
        xi = torch.tensor(7.0, dtype=torch.float64) if spread is None else wild
        state = sampler.resample(State(position, wild, xi), 0.8, fresh(110))
        assert state.position is position
        assert state.momentum is not None and state.thermostat is not None
        assert state.momentum.abs().max() < 20.0
        if spread is None:
            assert_moments(state.momentum, 0.0, 0.8)
            assert state.thermostat.item() == 7.0  # holds what it learned of the noise
        else:
            assert_moments(state.thermostat, 0.4, spread * 0.8)
    assert SGLD().resample(State(position), 1.0, fresh(111)) == State(position)


# -- exact limits -----------------------------------------------------------------------------


def test_sghmc_with_the_largest_friction_is_sgld() -> None:
    """h C = 1 forgets the momentum: SGLD with eps = h^2, from the same noise."""
    start, h = randn(50, 3, stream=112), 0.3
    scale = randn(50, 1, stream=113).exp().clamp_max(2.0)  # chaos would lose digits
    gradient = torch.tanh
    heavy = run(SGHMC(1 / h), start.clone(), gradient, h, 20, Drawn(114, skip=1), 0.7, scale)
    light = run(SGLD(), start.clone(), gradient, h * h, 20, Drawn(114), 0.7, scale)
    torch.testing.assert_close(heavy.position, light.position, rtol=1e-10, atol=1e-12)


class Drawn(Noise):
    """The same standard normal numbers whatever their scale; ``skip`` draws are left out."""

    def __init__(self, stream: int, skip: int = 0) -> None:
        super().__init__(noise(stream))
        self._skip = skip

    def normal(self, like: Tensor, std: float = 1.0) -> Tensor:
        if self._skip:
            self._skip -= 1
            return torch.zeros_like(like)
        return super().normal(like) * std


def test_algorithm_2_makes_the_same_chain() -> None:
    """u = p h, alpha = xi h (Ding et al., appendix F), written down once more."""
    eta, a = 0.04, 0.12
    h, friction = reformulated(eta, a)
    assert (h, friction) == (pytest.approx(0.2), pytest.approx(0.6))
    start, scale = randn(40, 2, stream=115), ONE
    gradient = lambda x: torch.tanh(3 * x) + x
    state = run(SGNHT(friction), start.clone(), gradient, h, 25, Drawn(116), 1.0, scale)
    source = Drawn(116)
    theta, u = start.clone(), h * source.normal(start)
    alpha = a
    for _ in range(25):
        u = u - alpha * u - eta * gradient(theta) + source.normal(u, (2 * a * eta) ** 0.5)
        theta = theta + u
        alpha = alpha + (u.square().mean().item() - eta)
    assert state.momentum is not None and state.thermostat is not None
    torch.testing.assert_close(state.position, theta, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(state.momentum * h, u, rtol=1e-9, atol=1e-11)
    assert state.thermostat.item() * h == pytest.approx(alpha, rel=1e-9)


@pytest.mark.parametrize(
    ("per", "shape", "cold"),
    [("block", (), None), ("row", (6, 1), slice(3, None)), ("column", (1, 4), (..., slice(2, 4)))],
)
def test_the_thermostat_rises_when_the_momenta_are_hot(
    per: Literal["block", "row", "column"], shape: tuple[int, ...], cold: Any
) -> None:
    position = torch.zeros(6, 4, dtype=torch.float64)
    hot = torch.full_like(position, 1.5)
    if cold is not None:
        hot[cold] = 0.5
    sampler = SGNHT(0.3, per)
    before = sampler.init(position, 1.0, fresh(117)).thermostat
    assert before is not None and before.shape == shape
    state = sampler.step(
        State(position, hot, before), torch.zeros_like(position), 1e-6, ONE, 1.0, fresh(118)
    )
    assert state.thermostat is not None
    rise = (state.thermostat - before).flatten() / 1e-6
    half = before.numel() // 2
    expected = [1.25] if cold is None else [1.25] * half + [-0.75] * half
    assert rise.tolist() == pytest.approx(expected, abs=0.05)


def test_corv_with_the_identity_is_plain_sgld_to_the_bit() -> None:
    start, plain = randn(30, 4, stream=119), CoRV(Identity())
    gradient = lambda x: 0.3 * x**3 - x
    through = run(
        SGLD(), plain.position(start), lambda x: plain.gradient(x, gradient(plain.factor(x)), 0.6),
        0.05, 30, fresh(120), 0.6,
    )  # fmt: skip
    alone = run(SGLD(), start.clone(), gradient, 0.05, 30, fresh(120), 0.6)
    assert torch.equal(through.position, alone.position)


def test_ito_is_the_formula_of_the_paper() -> None:
    """phi + eps (-g' U' + tau g'') + sqrt(2 eps tau) g' eta (Yokoi et al., eq. 10)."""
    domain, eps, tau = Ito(Softplus()), 0.003, 0.7
    phi, eta = randn(20, 2, stream=121), randn(20, 2, stream=122)
    at = phi.clone().requires_grad_()
    theta = torch.nn.functional.softplus(at)
    (first,) = torch.autograd.grad(theta.sum(), at, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), at)
    slope = 1.5 - 0.7 / theta.detach()
    g1, g2 = 1 / first.detach(), -second / first.detach() ** 3
    expected = phi + eps * (-g1 * slope + tau * g2) + math.sqrt(2 * eps * tau) * g1 * eta

    class Once(Noise):
        def normal(self, like: Tensor, std: float = 1.0) -> Tensor:
            return eta * std

    gradient = domain.gradient(phi, slope, tau)
    state = SGRLD(domain.metric).step(State(phi), gradient, eps, ONE, tau, Once(noise(0)))
    torch.testing.assert_close(state.position, expected, rtol=1e-10, atol=1e-12)


# -- always -----------------------------------------------------------------------------------

SOFTPLUS = CoRV(Softplus())
EVERY: dict[str, tuple[Sampler, Domain]] = {
    "sgld": (SGLD(), SOFTPLUS),
    "sgld, mirror": (SGLD(), Mirror()),
    "sgld, exp": (SGLD(), CoRV(HALF_LINE["exp"])),
    "sgrld": (SGRLD(SOFTPLUS.metric), SOFTPLUS),
    "sgrld, mirror": (SGRLD(Mirror().metric), Mirror()),
    "sghmc": (SGHMC(0.7), SOFTPLUS),
    "sghmc, mirror": (SGHMC(0.7), Mirror()),
    "laplacian": (SGHMC(0.7, kinetics=MonomialGamma(1)), SOFTPLUS),
    "sgnht": (SGNHT(0.7), SOFTPLUS),
    "sgrhmc": (SGRHMC(SOFTPLUS.metric, 0.7), SOFTPLUS),
    "sgrhmc, mirror": (SGRHMC(Mirror().metric, 0.7), Mirror()),
    "sgmgt": (SGMGT(0.7), SOFTPLUS),
    "sgmgt, a = 2": (SGMGT(0.7, MonomialGamma(2)), SOFTPLUS),
    "sgmgt, mirror": (SGMGT(0.7), Mirror()),
    "sgmgt-d, Euler": (
        SGMGT(0.7, position_diffusion=0.2, thermostat_diffusion=0.2, integrator="euler"), SOFTPLUS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EVERY)
@settings(deadline=None, max_examples=20, derandomize=False)
@given(
    rows=st.integers(1, 7),
    rank=st.integers(1, 4),
    step=st.floats(1e-4, 0.3),
    temperature=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_states_stay_finite_inside_and_whole(
    name: str,
    rows: int,
    rank: int,
    step: float,
    temperature: float,
    seed: int,
    dtype: torch.dtype,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Gamma(2, 1) targets: no NaN, theta positive, and a state that comes back equal from disk."""
    sampler, domain = EVERY[name]
    source = fresh(seed)
    theta = 0.2 + source.exponential(torch.empty(rows, rank, dtype=dtype))
    scale = 0.5 + 0.5 * source.uniform(torch.empty(rows, 1, dtype=dtype))
    state = sampler.init(domain.position(theta), temperature, source)
    for _ in range(6):
        state = sampler.before_gradient(state, step, scale, temperature)
        domain.confine(state.position, state.momentum)
        factor = domain.factor(state.position)
        gradient = (1.0 - 1.0 / factor.clamp_min(1e-3)).to(dtype)
        gradient = domain.gradient(state.position, gradient, temperature)
        state = sampler.step(state, gradient, step, scale, temperature, source)
        domain.confine(state.position, state.momentum)
    kept = {key: value for key, value in state._asdict().items() if value is not None}
    assert all(tensor.isfinite().all() for tensor in kept.values())
    assert state.position.dtype == dtype and state.position.shape == (rows, rank)
    assert (domain.factor(state.position) >= 0.0).all()
    path = tmp_path_factory.mktemp("state") / "state.safetensors"
    back = load_tensors(path, save_tensors(path, kept))
    assert back.keys() == kept.keys()
    assert all(torch.equal(back[key], kept[key]) for key in kept)


@pytest.mark.parametrize("name", EVERY)
def test_no_noise_and_no_gradient_at_temperature_0(name: str) -> None:
    """What does not move stays: no gradient, no momentum, no noise."""
    sampler, domain = EVERY[name]
    start = domain.position(torch.full((3, 2), 0.8, dtype=torch.float64))
    state = sampler.init(start.clone(), 0.0, fresh(123))
    for _ in range(3):
        state = sampler.before_gradient(state, 0.1, ONE, 0.0)
        state = sampler.step(state, torch.zeros_like(start), 0.1, ONE, 0.0, fresh(124))
    torch.testing.assert_close(state.position, start)


@pytest.mark.parametrize(
    ("sampler", "step", "words"),
    [
        (SGHMC(3.0), 0.7, "--friction 3"),
        (SGNHT(30.0), 0.1, "--step-size 0.1"),
        (SGMGT(5.0), 0.5, "2.5"),
        (SGRHMC(SOFTPLUS.metric, 0.1, noise_estimate=9.0), 0.1, "--noise-estimate 9"),
        (SGHMC(0.1, noise_estimate=9.0), 0.1, "--noise-estimate 9"),
    ],
)
def test_what_cannot_stand_is_refused(sampler: Sampler, step: float, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("-", "[-]")):
        sampler.check(step, 1.0)
    sampler.check(1e-3, 1.0)


def test_other_monomials_are_refused() -> None:
    with pytest.raises(ValueError, match="1 and 2"):
        MonomialGamma(3)


# -- naive slices -----------------------------------------------------------------------------


def test_slices_of_the_whole_density_are_exact() -> None:
    """A Gamma(3, 2) in log theta, which is skew; from a narrow and from a wide first interval."""
    for width in (0.05, 30.0):
        source = fresh(125)
        phi = torch.zeros(20_000, dtype=torch.float64)
        for _ in range(25):
            phi = NaiveSlice(width).step(phi, lambda x: 2.0 * x.exp() - 3.0 * x, source)
        assert stats.kstest(phi.exp().numpy(), stats.gamma(3.0, scale=0.5).cdf).pvalue > 1e-6


def test_a_potential_without_a_number_is_refused() -> None:
    x = torch.zeros(5, dtype=torch.float64)
    with pytest.raises(ValueError, match="finite"):
        NaiveSlice(1.0).step(x, lambda y: y / 0.0, fresh(132))
    # a large constant, which swallows the level in float32: the chain stays, and comes back
    heavy = NaiveSlice(1.0).step(torch.zeros(5), lambda y: 0.5 * y * y + 1e9, fresh(133))
    assert heavy.isfinite().all()


def test_slices_of_minibatches_are_too_wide() -> None:
    """Noise of standard deviation 2 in the slope of a Gaussian's potential is never taken out."""
    source, errors = fresh(126), fresh(127)
    x = torch.zeros(20_000, dtype=torch.float64)
    for _ in range(60):
        tilt = errors.normal(x, 2.0)
        x = NaiveSlice(2.0).step(x, lambda y, tilt=tilt: 0.5 * y * y + tilt * y, source)
    assert x.var().item() > 2.0


def test_replacing_the_kinetics_changes_the_chain() -> None:
    start = randn(5, 2, stream=128)
    ends = [
        run(
            replace(SGMGT(0.5), kinetics=k), start.clone(), lambda x: x, 0.1, 5, fresh(129)
        ).position
        for k in (MonomialGamma(1), MonomialGamma(2), MonomialGamma(1, softening=3.0))
    ]
    assert not torch.equal(ends[0], ends[1]) and not torch.equal(ends[0], ends[2])
