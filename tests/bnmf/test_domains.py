"""The way from theta's gradient to the position's, and the boundary."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bnmf.domains import CoRV, Domain, Ito, Mirror
from bnmf.random import Noise
from bnmf.samplers.sgnht import SGNHT
from bnmf.transforms import HALF_LINE, Arctan, Identity, Sigmoid, Softsign, Transform
from tests.oracles import ERRORS, noise

each_transform = pytest.mark.parametrize("transform", HALF_LINE.values(), ids=HALF_LINE)


def potential(theta: torch.Tensor) -> torch.Tensor:
    """A sum of Gamma potentials that differ by entry."""
    shape = torch.arange(1, theta.numel() + 1, dtype=theta.dtype).view(theta.shape)
    return (0.7 * theta - shape * theta.log() + 0.01 * theta.square()).sum()


@each_transform
@settings(deadline=None, derandomize=False)
@given(
    phis=st.lists(st.floats(-6.0, 4.0), min_size=4, max_size=4),
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
)
def test_corv_gradient(transform: Transform, phis: list[float], temperature: float) -> None:
    domain = CoRV(transform)
    phi = torch.tensor(phis, dtype=torch.float64).view(2, 2).requires_grad_()
    theta = transform.forward(phi)
    (slope,) = torch.autograd.grad(theta.sum(), phi, create_graph=True)
    (expected,) = torch.autograd.grad(potential(theta) - temperature * slope.log().sum(), phi)
    at = phi.detach()
    theta = domain.factor(at).requires_grad_()
    (gradient,) = torch.autograd.grad(potential(theta), theta)
    actual = domain.gradient(at, gradient, temperature)
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-10)
    assert torch.equal(at, phi.detach())


@each_transform
def test_corv_positions(transform: Transform) -> None:
    domain = CoRV(transform)
    theta = torch.logspace(-3, 2, 24, dtype=torch.float64).view(8, 3)
    position = domain.position(theta)
    torch.testing.assert_close(domain.factor(position), theta, rtol=1e-12, atol=0.0)
    assert domain.support == (0.0, math.inf)
    kept, momentum = position.clone(), torch.ones_like(position)
    domain.confine(position, momentum)
    domain.confine(position, None)
    assert torch.equal(position, kept) and torch.equal(momentum, torch.ones_like(kept))


@each_transform
def test_corv_mean_square_slope(transform: Transform) -> None:
    phi = torch.linspace(-3.0, 2.0, 12, dtype=torch.float64).view(4, 3).requires_grad_()
    (slope,) = torch.autograd.grad(transform.forward(phi).sum(), phi)
    actual = CoRV(transform).mean_square_slope(phi.detach())
    assert actual == pytest.approx(slope.square().mean().item(), rel=1e-12)


def test_mirror_is_the_identity_inside() -> None:
    domain = Mirror()
    theta = torch.rand(5, 3, generator=noise(1), dtype=torch.float64)
    gradient = torch.randn(5, 3, generator=noise(2), dtype=torch.float64)
    position = domain.position(theta)
    assert torch.equal(domain.factor(position), theta)
    assert torch.equal(domain.gradient(position, gradient.clone(), 0.3), gradient)
    assert domain.mean_square_slope(position) == 1.0
    assert domain.support == (0.0, math.inf)
    position.zero_()
    assert (theta > 0.0).any(), "a position must not share memory with the factor it came from"


def test_mirror_reflects_and_turns_the_momentum() -> None:
    position = torch.tensor([[-0.5, 0.25], [2.0, -3.0]])
    momentum = torch.tensor([[-1.0, -2.0], [3.0, -4.0]])
    Mirror().confine(position, momentum)
    assert position.tolist() == [[0.5, 0.25], [2.0, 3.0]]
    assert momentum.tolist() == [[1.0, -2.0], [3.0, 4.0]]
    alone = torch.tensor([[-0.5, 0.25]])
    Mirror().confine(alone, None)
    assert alone.tolist() == [[0.5, 0.25]]


DOMAINS: dict[str, Domain] = {
    **{f"corv {name}": CoRV(transform) for name, transform in HALF_LINE.items()},
    "corv sigmoid": CoRV(Sigmoid(-1.0, 2.0)),
    "ito softplus": Ito(HALF_LINE["softplus"]),
    "ito arctan": Ito(Arctan()),
    "mirror": Mirror(),
    "mirror (-1, 2)": Mirror((-1.0, 2.0)),
}


@pytest.mark.parametrize("name", DOMAINS)
def test_metrics_are_positive_with_their_own_derivative(name: str) -> None:
    domain = DOMAINS[name]
    at = torch.linspace(-0.9, 1.9, 57, dtype=torch.float64)
    if name == "mirror":
        at = at.abs() + 0.01
    position = at.clone().requires_grad_()
    metric, slope = domain.metric(position)
    (expected,) = torch.autograd.grad(metric.sum(), position)
    assert (metric > 0.0).all()
    torch.testing.assert_close(slope, expected, rtol=1e-8, atol=1e-10)


def test_the_metric_without_a_transform_is_flat() -> None:
    metric, slope = CoRV(Identity()).metric(torch.randn(3, 2))
    assert (metric == 1.0).all() and (slope == 0.0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_metric_of_proxies_is_bounded(dtype: torch.dtype) -> None:
    """So that no step runs away: at most 5, however far the proxy is."""
    phi = torch.tensor([-1e30, -200.0, -5.0, 0.0, 5.0, 200.0, 1e30], dtype=dtype)
    for transform in (*HALF_LINE.values(), Sigmoid(), Arctan(), Softsign()):
        metric, slope = CoRV(transform).metric(phi)
        assert (metric <= 5.0).all() and (metric >= 0.0).all(), transform.name
        assert slope.isfinite().all(), transform.name
        for tensor in Ito(transform).metric(phi):
            assert not tensor.isnan().any(), transform.name


def test_an_interval_reflects_as_often_as_needed() -> None:
    """Odd reflections turn the momentum, even ones do not."""
    position = torch.tensor([[-1.5, 2.5, 0.5], [8.25, -7.0, 5.5]], dtype=torch.float64)
    momentum = torch.ones(2, 3, dtype=torch.float64)
    Mirror((-1.0, 2.0)).confine(position, momentum)
    # by hand: -1.5 -> -0.5; 2.5 -> 1.5; 8.25 -> -4.25 -> 2.25 -> 1.75; -7 -> 5 -> -1; 5.5 -> -1.5 -> -0.5
    torch.testing.assert_close(
        position, torch.tensor([[-0.5, 1.5, 0.5], [1.75, -1.0, -0.5]], dtype=torch.float64)
    )
    assert momentum[0].tolist() == [-1.0, -1.0, 1.0]
    assert momentum[1, 0] == -1.0 and momentum[1, 2] == 1.0
    shifted, turned = torch.tensor([[0.5, 3.0]]), torch.ones(1, 2)
    Mirror((1.0, math.inf)).confine(shifted, turned)
    assert shifted.tolist() == [[1.5, 3.0]] and turned.tolist() == [[-1.0, 1.0]]


def mirrored_chain(step: float, rate: float, temperature: float, stream: int) -> torch.Tensor:
    """140,000 entries under one thermostat, 14 units of time after a start uniform on 0 to twice
    the target's mean; by 12 units their moments no longer move."""
    domain, sampler, generator = Mirror(), SGNHT(1.0), Noise(noise(80, stream))
    one = torch.ones(1, 1)
    start = 2 * temperature / rate * generator.uniform(torch.empty(140_000, 1))
    state = sampler.init(domain.position(start), temperature, generator)
    for _ in range(round(14.0 / step)):
        gradient = torch.full_like(start, rate)
        gradient = domain.gradient(state.position, gradient, temperature)
        state = sampler.step(state, gradient, step, one, temperature, generator)
        domain.confine(state.position, state.momentum)
    assert (state.position >= 0.0).all()
    assert (state.position == 0.0).double().mean() < 1e-3  # none are heaped up at the boundary
    return domain.factor(state.position).double()


@pytest.mark.parametrize(("rate", "temperature"), [(1.5, 1.0), (1.0, 0.5)])
def test_mirror_with_sgnht_tends_to_the_exponential(rate: float, temperature: float) -> None:
    """exp(-U / tau), U = rate theta: mean and standard deviation m = tau / rate.

    At h = 0.1 the mean is 5 % short and the variance 11 %, at 0.05 half of that. Extrapolated,
    2 x(h / 2) - x(h) has no first order left; what remains is about the square of those shares,
    0.3 % and 1.2 %, and the slack is twice that and more. Entries are independent but for the
    thermostat, whose part in a mean over them vanishes as they grow many.
    """
    m = temperature / rate
    mean = variance = mean_error = variance_error = 0.0
    for stream, (step, weight) in enumerate([(0.1, -1.0), (0.05, 2.0)]):
        theta = mirrored_chain(step, rate, temperature, stream) / m
        square = (theta - theta.mean()).square()
        assert 0.8 < square.mean() < 1.0
        mean += weight * theta.mean().item()
        variance += weight * square.mean().item()
        mean_error += weight**2 * theta.var().item() / len(theta)
        variance_error += weight**2 * square.var().item() / len(theta)
    assert abs(mean - 1.0) < ERRORS * math.sqrt(mean_error) + 0.01
    assert abs(variance - 1.0) < ERRORS * math.sqrt(variance_error) + 0.03
