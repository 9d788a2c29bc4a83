"""Transforms and domains against autograd, scipy and their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special

from bnmf.domains import CoRV, Mirror
from bnmf.transforms import (
    HALF_LINE,
    POSITIVE,
    REAL,
    Arctan,
    Identity,
    Sigmoid,
    Softsign,
    Transform,
    transform_onto,
)

ALL = pytest.mark.parametrize("transform", HALF_LINE.values(), ids=HALF_LINE.keys())
EXTREME = [-1e30, -1e4, -200.0, -30.0, 30.0, 200.0, 1e4, 1e30]


@ALL
def test_slopes_are_autograds(transform: Transform) -> None:
    # across 0, where icll changes from its series to its continued fraction
    phi = torch.linspace(-12.0, 5.0, 1001, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(transform.forward(phi).sum(), phi, create_graph=True)
    slope, bend = transform.slopes(phi)
    torch.testing.assert_close(slope, first, rtol=1e-10, atol=0.0)
    (log_slope,) = torch.autograd.grad(slope.log().sum(), phi)
    torch.testing.assert_close(bend, log_slope, rtol=1e-7, atol=1e-12)


@ALL
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 2e-5), (torch.float64, 1e-10)])
def test_inverse_comes_back(transform: Transform, dtype: torch.dtype, rtol: float) -> None:
    theta = torch.logspace(-4, 1.5, 200, dtype=dtype)
    phi = transform.inverse(theta)
    assert phi.dtype == dtype
    torch.testing.assert_close(transform.forward(phi), theta, rtol=rtol, atol=0.0)


@ALL
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_positions_stay_finite(transform: Transform, dtype: torch.dtype) -> None:
    phi = torch.tensor(EXTREME, dtype=dtype)
    theta = transform.forward(phi)
    for tensor in (theta, *transform.slopes(phi)):
        assert tensor.isfinite().all(), tensor
    assert (theta >= 0).all()
    assert (theta.square().isfinite()).all() or transform.name != "exp"


@ALL
def test_increasing_onto_the_half_line(transform: Transform) -> None:
    assert transform.support == (0.0, float("inf"))
    theta = transform.forward(torch.linspace(-30.0, 30.0, 5001, dtype=torch.float64))
    assert (theta.diff() > 0).all() and theta[0] > 0 and theta[0] < 1e-12 and theta[-1] > 29


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_icll_is_its_definition(dtype: torch.dtype, rtol: float) -> None:
    """phi + E1(e^phi) + gamma by scipy; for small x by the series, where that sum cancels."""
    phi = torch.linspace(-2.0, 6.0, 400, dtype=dtype)
    exact = phi.double().numpy() + special.exp1(np.exp(phi.double().numpy())) + np.euler_gamma
    got = HALF_LINE["icll"].forward(phi).double().numpy()
    np.testing.assert_allclose(got, exact, rtol=rtol)
    x = np.exp(-20.0)
    small = HALF_LINE["icll"].forward(torch.tensor([-20.0], dtype=dtype)).item()
    assert small == pytest.approx(x - x**2 / 4, rel=1e-6)


@ALL
@pytest.mark.parametrize("temperature", [1.0, 0.3, 0.0])
def test_corv_gradient_is_that_of_the_tempered_proxy_potential(
    transform: Transform, temperature: float
) -> None:
    """U(f(phi)) - tau log f'(phi), for a Gamma(2.5, 1.7) target."""
    phi = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    theta = transform.forward(phi)
    slope, _ = transform.slopes(phi)
    potential = (1.7 * theta - 1.5 * theta.log() - temperature * slope.log()).sum()
    (expected,) = torch.autograd.grad(potential, phi)
    with torch.no_grad():
        got = CoRV(transform).gradient(phi, 1.7 - 1.5 / theta, temperature)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


def test_mirror_reflects_and_turns_momenta() -> None:
    position = torch.tensor([[1.0, -2.0], [-0.5, 0.0]])
    momentum = torch.tensor([[3.0, 4.0], [-5.0, 6.0]])
    Mirror().confine(position, momentum)
    assert position.tolist() == [[1.0, 2.0], [0.5, 0.0]]
    assert momentum.tolist() == [[3.0, -4.0], [5.0, 6.0]]
    Mirror().confine(position, None)
    assert position.min() >= 0


# -- onto intervals, and the identity ---------------------------------------------------------

LOW, HIGH = -0.5, 2.0
INTERVALS = [Sigmoid(LOW, HIGH), Arctan(LOW, HIGH), Softsign(LOW, HIGH)]
EACH = pytest.mark.parametrize("transform", INTERVALS, ids=lambda t: t.name)
UNIT = {
    "sigmoid": special.expit,
    "arctan": lambda x: np.arctan(x) / np.pi + 0.5,
    "softsign": lambda x: x / (2 * (1 + np.abs(x))) + 0.5,
}


@EACH
def test_intervals_are_their_definitions(transform: Transform) -> None:
    phi = torch.linspace(-9.0, 9.0, 300, dtype=torch.float64)
    expected = LOW + (HIGH - LOW) * UNIT[transform.name](phi.numpy())
    np.testing.assert_allclose(transform.forward(phi), expected, rtol=1e-12)
    assert transform.support == (LOW, HIGH)


@EACH
def test_slopes_onto_intervals_are_autograds(transform: Transform) -> None:
    phi = torch.linspace(-9.0, 9.0, 300, dtype=torch.float64, requires_grad=True)  # not through 0
    (first,) = torch.autograd.grad(transform.forward(phi).sum(), phi, create_graph=True)
    slope, bend = transform.slopes(phi)
    torch.testing.assert_close(slope, first, rtol=1e-10, atol=0.0)
    (log_slope,) = torch.autograd.grad(slope.log().sum(), phi)
    torch.testing.assert_close(bend, log_slope, rtol=1e-9, atol=1e-12)


@EACH
def test_inverse_of_intervals_comes_back(transform: Transform) -> None:
    theta = torch.linspace(LOW + 1e-6, HIGH - 1e-6, 400, dtype=torch.float64)
    torch.testing.assert_close(
        transform.forward(transform.inverse(theta)), theta, rtol=0, atol=1e-13
    )
    small = type(transform)()  # onto (0, 1), where a small theta keeps its digits
    tiny = torch.tensor([1e-12, 1e-9, 1e-5], dtype=torch.float64)
    torch.testing.assert_close(small.forward(small.inverse(tiny)), tiny, rtol=1e-9, atol=0.0)


@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_positions_stay_inside_the_interval(
    transform: Transform, dtype: torch.dtype
) -> None:
    """Open at both ends: a log density is finite wherever a chain can go."""
    phi = torch.tensor(EXTREME, dtype=dtype)
    theta = transform.forward(phi)
    low, high = (torch.tensor(end, dtype=dtype) for end in (LOW, HIGH))
    assert (theta > low).all() and (theta < high).all() and (theta.diff() >= 0).all()
    for tensor in transform.slopes(phi):
        assert tensor.isfinite().all(), tensor
    unit = type(transform)().forward(phi)
    assert (1 / unit).isfinite().all() and (1 / (1 - unit)).isfinite().all()


def test_the_identity_changes_nothing() -> None:
    phi = torch.randn(4, 3)
    one = Identity()
    assert torch.equal(one.forward(phi), phi) and torch.equal(one.inverse(phi), phi)
    slope, bend = one.slopes(phi)
    assert (slope == 1.0).all() and (bend == 0.0).all() and one.support == REAL
    one.inverse(phi).zero_()
    assert (phi != 0.0).any(), "a position must not share memory with its factor"


@pytest.mark.parametrize(
    ("support", "fitting"),
    [(POSITIVE, "exp softplus icll"), (REAL, "identity"), ((-1.0, 1.0), "sigmoid arctan softsign")],
)
def test_a_transform_knows_its_support(support: tuple[float, float], fitting: str) -> None:
    for name in ("identity", "exp", "softplus", "icll", "sigmoid", "arctan", "softsign", "cosine"):
        if name in fitting.split():
            assert transform_onto(name, support).support == support
        else:
            with pytest.raises(ValueError, match=f"{name} .*choose {fitting.split()[0]}"):
                transform_onto(name, support)


@pytest.mark.parametrize("ends", [(1.0, 0.0), (0.0, 0.0), (0.0, float("inf")), (float("nan"), 1.0)])
def test_what_is_no_interval_is_refused(ends: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="interval"):
        Sigmoid(*ends)
    if ends[1] != float("inf"):
        with pytest.raises(ValueError, match="reflect"):
            Mirror(ends)


@pytest.mark.parametrize("support", [(5.0, float("inf")), (float("-inf"), 0.0)])
def test_other_half_lines_are_refused(support: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="shift"):
        transform_onto("sigmoid", support)
