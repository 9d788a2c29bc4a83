"""Targets and metric of the recipe's experiments by autograd, and what the paper claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from bnmf.experiments import EXPERIMENTS
from bnmf.experiments.base import noise
from bnmf.experiments.recipes import Target, metric_of, plane, targets
from bnmf.random import Noise
from bnmf.samplers.recipe import from_recipe
from bnmf.samplers.sgrhmc import SGRHMC
from tests.oracles import SEED

EACH = (*targets(), plane())


def points(target: Target) -> Tensor:
    return noise(SEED, 1).normal(torch.empty(20, len(target.start), dtype=torch.float64))


def test_gradients_and_metrics_are_those_of_the_potentials() -> None:
    for target in EACH:
        theta = points(target).requires_grad_()
        (slope,) = torch.autograd.grad(target.potential(theta).sum(), theta)
        torch.testing.assert_close(target.gradient(theta), slope)
        metric, found = metric_of(target)(theta)
        assert (metric > 0.0).all()
        (expected,) = torch.autograd.grad(metric[:, 0].sum(), theta)
        torch.testing.assert_close(found, expected)


def test_bins_know_the_truth() -> None:
    """Against sums over a fine grid."""
    one = EACH[0]
    edges = torch.linspace(-5, 5, 41, dtype=torch.float64)
    cdf = torch.special.ndtr(edges)
    cdf[0], cdf[-1] = 0.0, 1.0
    torch.testing.assert_close(torch.from_numpy(one.bins.truth), cdf.diff(), rtol=1e-5, atol=1e-6)
    assert abs(EACH[2].bins.truth.sum() - 1.0) < 1e-12


def test_the_recipe_makes_the_same_chain_in_the_plane() -> None:
    """From D and Q alone, with the divergence by autograd: SGRHMC's steps."""
    target = plane()
    metric = metric_of(target)

    def d(z: Tensor) -> Tensor:
        return torch.diag(metric(z[None, :2])[0][0])

    def diffusion(z: Tensor) -> Tensor:
        return torch.block_diag(z.new_zeros(2, 2), d(z))

    def curl(z: Tensor) -> Tensor:
        root, nil = d(z).sqrt(), z.new_zeros(2, 2)
        return torch.cat([torch.cat([nil, -root], 1), torch.cat([root, nil], 1)])

    def slope(z: Tensor) -> Tensor:
        return torch.cat([target.gradient(z[:, :2]), z[:, 2:]], dim=1)

    class First(Noise):
        """The momenta's numbers, and none for the positions, which do not diffuse."""

        def __init__(self, of: Noise) -> None:
            self.of, self.asked = of, 0

        def normal(self, like: Tensor, std: float = 1.0) -> Tensor:
            self.asked += 1
            return self.of.normal(like) * std if self.asked % 2 else torch.zeros_like(like)

    class Plain(Noise):
        def normal(self, like: Tensor, std: float = 1.0) -> Tensor:
            return super().normal(like) * std

    sampler, recipe = SGRHMC(metric, 1.0), from_recipe(diffusion, curl, ((2, 3), (0, 1)))
    one = torch.ones(1, 1, dtype=torch.float64)
    state = sampler.init(points(target) * 0.3, 1.0, noise(SEED, 2))
    assert state.momentum is not None
    z = torch.cat([state.position, state.momentum], dim=1)
    first, other = Plain(noise(SEED, 3).source), First(Plain(noise(SEED, 3).source))
    for _ in range(15):
        state = sampler.step(state, target.gradient(state.position), 0.02, one, 1.0, first)
        z = recipe.step(z, slope, 0.02, 1.0, other)
    assert state.momentum is not None
    torch.testing.assert_close(z[:, :2], state.position, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(z[:, 2:], state.momentum, rtol=1e-9, atol=1e-11)


def last(table: Mapping[str, Sequence[str | int | float]]) -> dict[tuple[str, str], list[float]]:
    """Divergence and its error after all steps, by target and sampler; later rows replace."""
    return {
        (str(target), str(sampler)): [float(value), float(error)]
        for target, sampler, value, error in zip(
            table["target"], table["sampler"], table["KL divergence"], table["its error"],
            strict=True,
        )
    }  # fmt: skip


def test_momenta_cross_the_barrier_at_least_as_fast_as_langevin() -> None:
    """Not above SGLD's divergence on two peaks, by three standard errors; the two samplers with
    momenta within a factor of 2 of each other, by the same."""
    found = last(EXPERIMENTS["recipe-1d"].run(True, SEED).table)
    langevin = found["two peaks", "SGLD"]
    for name in ("SGHMC", "gSGRHMC"):
        value, error = found["two peaks", name]
        assert value <= langevin[0] + 3 * (langevin[1] + error)
    for target in ("one peak", "two peaks"):
        one, other = found[target, "SGHMC"], found[target, "gSGRHMC"]
        assert one[0] <= 2 * other[0] + 3 * (one[1] + 2 * other[1])
        assert other[0] <= 2 * one[0] + 3 * (other[1] + 2 * one[1])


def test_the_metric_pays_in_the_plane() -> None:
    """gSGRHMC's divergence is below SGHMC's and SGLD's, by three standard errors."""
    found = last(EXPERIMENTS["recipe-2d"].run(True, SEED).table)
    riemann = found["plane", "gSGRHMC"]
    for name in ("SGHMC", "SGLD"):
        value, error = found["plane", name]
        assert riemann[0] + 3 * (riemann[1] + error) < value
