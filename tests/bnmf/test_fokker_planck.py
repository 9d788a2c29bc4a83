"""Every sampler's own drift and diffusion, read off its step, leave its target in place.

A step is differentiated: in the step size at 0 it gives the drift f, in its noise the diffusion
D. Then -div(f rho) + sum_ij d_i d_j (D_ij rho) must vanish for rho = exp(-H / tau), wherever one
looks. Nothing of a sampler is written down a second time, and no chain is run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from bnmf.domains import CoRV, Domain, Ito, Mirror
from bnmf.random import Noise
from bnmf.samplers import Sampler, State
from bnmf.samplers.kinetics import Gaussian, MonomialGamma
from bnmf.samplers.sghmc import SGHMC
from bnmf.samplers.sgld import SGLD
from bnmf.samplers.sgmgt import SGMGT
from bnmf.samplers.sgnht import SGNHT
from bnmf.samplers.sgrhmc import SGRHMC
from bnmf.samplers.sgrld import SGRLD
from bnmf.transforms import Icll, Identity, Sigmoid, Softplus
from tests.oracles import noise

K = 2
SCALE = torch.tensor([[0.7]], dtype=torch.float64)
H = 1e-30  # a step so small that only the first order of h and of sqrt(h) is left


def potential(theta: Tensor) -> Tensor:
    """A log-gamma-like potential with a coupling, fit for positive and for real theta."""
    a, b = theta[..., 0], theta[..., 1]
    return 0.7 * a + 0.3 * a * a * (1 + b * b) + 0.5 * torch.cos(a - 2 * b) + 0.4 * b * b


class Given(Noise):
    """The noise that the test hands over, piece by piece."""

    def __init__(self, shocks: list[Tensor]) -> None:
        self.shocks, self.used = shocks, 0

    def normal(self, like: Tensor, std: float = 1.0) -> Tensor:
        self.used += 1
        return self.shocks[self.used - 1].view(like.shape) * std


Energy = Callable[[Tensor, Tensor], Tensor]  # (momentum, thermostat) -> K + F


@dataclass(frozen=True)
class Case:
    """A sampler in a domain, and what it adds to the potential."""

    sampler: Sampler
    domain: Domain
    extra: Energy | None = None  # of the momentum and the thermostat; None: position alone
    thermostats: int = 0


def kinetic(p: Tensor, xi: Tensor) -> Tensor:
    return 0.5 * p.square().sum()


def nose_hoover(friction: float) -> Energy:
    return lambda p, xi: kinetic(p, xi) + 0.5 * K * (xi - friction).square().sum()


def monomial(kinetics: MonomialGamma, friction: float, coupling: float) -> Energy:
    return lambda p, xi: kinetics.energy(p).sum() + (xi - friction).square().sum() / (2 * coupling)


REAL = CoRV(Identity())
SOFTPLUS = CoRV(Softplus())
LAPLACE, SECOND = MonomialGamma(1, 1.3, 3.0), MonomialGamma(2, 0.8, 4.0)
MGT = SGMGT(0.6, LAPLACE, coupling=0.7)
CASES = {
    "sgld": Case(SGLD(), REAL),
    "sgld, softplus": Case(SGLD(), SOFTPLUS),
    "sgld, icll": Case(SGLD(), CoRV(Icll())),
    "sgld, sigmoid": Case(SGLD(), CoRV(Sigmoid(-0.5, 2.0))),
    "sgrld, mirror": Case(SGRLD(Mirror().metric), Mirror()),
    "sgrld, mirror of an interval": Case(
        SGRLD(Mirror((-1.0, 3.0)).metric), Mirror((-1.0, 3.0))
    ),
    "sgrld, softplus": Case(SGRLD(SOFTPLUS.metric), SOFTPLUS),
    "ito": Case(SGRLD(Ito(Softplus()).metric), Ito(Softplus())),
    "sghmc": Case(SGHMC(0.9), REAL, kinetic),
    "sghmc, softplus": Case(SGHMC(0.9), SOFTPLUS, kinetic),
    "hmc": Case(SGHMC(0.0), REAL, kinetic),
    "laplacian hmc": Case(SGHMC(0.9, kinetics=LAPLACE), REAL, monomial(LAPLACE, 0.0, 1.0)),
    "sgnht": Case(SGNHT(0.6), REAL, nose_hoover(0.6), 1),
    "sgnht, softplus": Case(SGNHT(0.6), SOFTPLUS, nose_hoover(0.6), 1),
    "sgnht a row": Case(SGNHT(0.6, per="row"), REAL, nose_hoover(0.6), 1),
    "sgrhmc": Case(SGRHMC(SOFTPLUS.metric, 0.8), SOFTPLUS, kinetic),
    "sgrhmc, mirror": Case(SGRHMC(Mirror().metric, 0.8), Mirror(), kinetic),
    "sgmgt, a = 1": Case(MGT, REAL, monomial(LAPLACE, 0.6, 0.7), K),
    "sgmgt, a = 2": Case(replace(MGT, kinetics=SECOND), REAL, monomial(SECOND, 0.6, 0.7), K),
    "sgmgt, Euler": Case(replace(MGT, integrator="euler"), REAL, monomial(LAPLACE, 0.6, 0.7), K),
    "sgmgt-d, a = 1": Case(
        replace(MGT, position_diffusion=0.3, thermostat_diffusion=0.4),
        SOFTPLUS, monomial(LAPLACE, 0.6, 0.7), K,
    ),
    "sgmgt-d, a = 2, Euler": Case(
        replace(MGT, kinetics=SECOND, position_diffusion=0.3, thermostat_diffusion=0.4,
                integrator="euler"),
        REAL, monomial(SECOND, 0.6, 0.7), K,
    ),
}  # fmt: skip


def target(case: Case, temperature: float) -> Callable[[Tensor], Tensor]:
    """log rho of z = (position, momentum, thermostats)."""

    def log_rho(z: Tensor) -> Tensor:
        energy = potential(case.domain.factor(z[:K]))
        if isinstance(case.domain, CoRV):
            slope, _ = case.domain.transform.slopes(z[:K])
            energy = energy - temperature * slope.log().sum()
        if case.extra is not None:
            energy = energy + case.extra(z[K : 2 * K], z[2 * K :])
        return -energy / temperature

    return log_rho


def one_step(case: Case, z: Tensor, h: Tensor, shocks: list[Tensor], temperature: float) -> Tensor:
    """z after a step of the sampler itself."""
    position = z[:K].clone().view(1, K)
    momentum = z[K : 2 * K].clone().view(1, K) if case.extra else None
    shape = {0: (0,), 1: (1, 1) if getattr(case.sampler, "per", None) == "row" else (), K: (1, K)}
    thermostat = z[2 * K :].view(shape[case.thermostats]) if case.thermostats else None
    state = State(position, momentum, thermostat)
    step: float = h  # type: ignore[assignment]
    state = case.sampler.before_gradient(state, step, SCALE, temperature)
    at = state.position.clone()
    theta = case.domain.factor(at)
    (slope,) = torch.autograd.grad(potential(theta).sum(), theta, create_graph=True)
    gradient = case.domain.gradient(at, slope, temperature)
    state = case.sampler.step(state, gradient, step, SCALE, temperature, Given(shocks))
    return torch.cat([part.reshape(-1) for part in state if part is not None])


def drift_and_diffusion(case: Case, z: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """f (d,) and D (d, d) at z (d,), with dz = f dt + sqrt(2 D) dW."""
    shocks = [torch.zeros(K, dtype=z.dtype, requires_grad=True) for _ in range(3)]
    h = torch.tensor(H, dtype=z.dtype, requires_grad=True)
    moved = one_step(case, z, h, shocks, temperature)
    drift, roots = [], []
    for entry in moved:
        by_h, *by_noise = torch.autograd.grad(
            entry, [h, *shocks], create_graph=True, allow_unused=True
        )
        drift.append(torch.zeros_like(h) if by_h is None else by_h)
        roots.append(torch.cat([torch.zeros_like(s) if g is None else g
                                for g, s in zip(by_noise, shocks, strict=True)]))  # fmt: skip
    root = torch.stack(roots) / math.sqrt(H)
    return torch.stack(drift), 0.5 * root @ root.T


def gradient_of(value: Tensor, z: Tensor) -> Tensor:
    if not value.requires_grad:
        return torch.zeros_like(z)
    (found,) = torch.autograd.grad(value, z, create_graph=True, allow_unused=True)
    return torch.zeros_like(z) if found is None else found


def residual(case: Case, z: Tensor, temperature: float) -> float:
    """(-div(f rho) + sum_ij d_i d_j (D_ij rho)) / rho, by way of the probability current."""
    z = z.clone().requires_grad_()
    drift, diffusion = drift_and_diffusion(case, z, temperature)
    slope = gradient_of(target(case, temperature)(z), z)
    total = torch.zeros((), dtype=z.dtype)
    for i in range(len(z)):
        spread = sum(
            (
                gradient_of(diffusion[i, j], z)[j] + diffusion[i, j] * slope[j]
                for j in range(len(z))
            ),
            torch.zeros((), dtype=z.dtype),
        )
        current = drift[i] - spread
        total = total - gradient_of(current, z)[i] - current * slope[i]
    return abs(total.item())


def points(case: Case, n: int) -> list[Tensor]:
    size = K + (K if case.extra else 0) + case.thermostats
    drawn = torch.randn(n, size, generator=noise(80), dtype=torch.float64)
    if isinstance(case.domain, Mirror):
        drawn[:, :K] = drawn[:, :K].abs().clamp_max(2.5) + 0.1
    return list(drawn)


@pytest.mark.parametrize("temperature", [1.0, 0.4])
@pytest.mark.parametrize("name", CASES)
def test_the_target_stays_in_place(name: str, temperature: float) -> None:
    case = CASES[name]
    if name == "hmc":
        case = replace(case, sampler=SGHMC(1e-40))  # the root of 0 has no slope
    for z in points(case, 2):
        assert residual(case, z, temperature) < 1e-9


WRONG = {
    "sghmc": replace(CASES["sghmc"], sampler=SGHMC(0.9, noise_estimate=0.0), extra=lambda p, xi: 0.9 * kinetic(p, xi)),
    "sgnht": replace(CASES["sgnht"], extra=nose_hoover(0.7)),
    "sgmgt": replace(CASES["sgmgt, a = 1"], extra=monomial(LAPLACE, 0.7, 0.7)),
    "laplacian hmc": replace(CASES["laplacian hmc"], extra=kinetic),
    "sgrld": replace(CASES["sgrld, mirror"], sampler=SGRLD(lambda x: (x, torch.zeros_like(x)))),
    "sgrhmc": replace(CASES["sgrhmc"], sampler=SGRHMC(lambda x: (SOFTPLUS.metric(x)[0], torch.zeros_like(x)), 0.8)),
}  # fmt: skip


@dataclass(frozen=True)
class WrongFriction(SGHMC):
    """Drags with twice the friction that it injects noise for."""

    def step(self, state: State, gradient: Tensor, step_size: float, scale: Tensor,
             temperature: float, noise: Noise) -> State:  # fmt: skip
        assert state.momentum is not None
        dragged = gradient + self.friction * state.momentum / scale
        return super().step(state, dragged, step_size, scale, temperature, noise)


def test_a_wrong_friction_is_seen() -> None:
    case = replace(CASES["sghmc"], sampler=WrongFriction(0.9))
    assert min(residual(case, z, 1.0) for z in points(case, 4)) > 1e-3


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_target_or_a_missing_divergence_is_seen(name: str) -> None:
    assert max(residual(WRONG[name], z, 1.0) for z in points(WRONG[name], 4)) > 1e-3


def test_the_slopes_of_the_kinetics_are_those_of_their_energy() -> None:
    for kinetics in (LAPLACE, SECOND):
        p = torch.linspace(-6.0, 6.0, 301, dtype=torch.float64).add(0.013).requires_grad_()
        (slope,) = torch.autograd.grad(kinetics.energy(p).sum(), p, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), p)
        torch.testing.assert_close(kinetics.slopes(p)[0], slope, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(kinetics.slopes(p)[1], bend, rtol=1e-7, atol=1e-9)
    p = torch.linspace(-3.0, 3.0, 7)
    assert Gaussian().slopes(p)[0] is p and (Gaussian().slopes(p)[1] == 1.0).all()
