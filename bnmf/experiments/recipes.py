"""SGLD, SGHMC and generalised SGRHMC on small targets: Ma et al. 2015, section 4.1.

Gradients carry noise of variance 4 that no sampler is told of. SGRHMC's metric is the paper's
D = 1.5 |U + 1/2|^(1/2), from the potential itself. On the target with two peaks U + 1/2 crosses 0
at four places, where that D is 0 and its derivative infinite: in the coordinate y = int D^(-1/2),
in which momenta have unit mass, the density goes to 0 there like |y|^(1/3), and no chain of finite
energy gets across. (v^2 + 0.1^2)^(1/4) stands for |v|^(1/2) here. Each sampler runs at its own best of some step sizes, chosen on other chains.

On a Gaussian SGHMC has nothing to gain: SGLD forgets in 1 / eps steps, SGHMC in 2 / (C h), and at
equal forgetting the gradient's variance V raises SGLD's temperature by eps V / 2 and SGHMC's by
h V / (2 C) = 2 / C times that, with C = 1 here. Friction pays where there is a barrier or a valley.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bnmf.domains import CoRV
from bnmf.experiments.base import Claim, Experiment, Result, Vector, chain, noise
from bnmf.experiments.bins import Bins
from bnmf.samplers import Metric, Sampler
from bnmf.samplers.sghmc import SGHMC
from bnmf.samplers.sgld import SGLD
from bnmf.samplers.sgrhmc import SGRHMC
from bnmf.transforms import Identity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRADIENT_NOISE = 2.0  # standard deviation
SOFT = 0.1
ERRORS = 3.0  # Monte Carlo standard errors of every margin
NAMES = ("SGLD", "SGHMC", "gSGRHMC")
COLOURS = ("tab:blue", "tab:orange", "tab:green")


class Target(NamedTuple):
    """A potential and its gradient, (n, d) -> (n,) and (n, d), and bins with known probabilities."""

    name: str
    potential: Callable[[Tensor], Tensor]
    gradient: Callable[[Tensor], Tensor]
    bins: Bins
    start: tuple[float, ...]


def _bins(potential: Callable[[Tensor], Tensor], *edges: Vector) -> Bins:
    return Bins(lambda theta: potential(torch.from_numpy(theta)).numpy(), edges)


def _one_peak(theta: Tensor) -> Tensor:
    return 0.5 * theta[:, 0].square()


def _two_peaks(theta: Tensor) -> Tensor:
    return theta[:, 0] ** 4 - 2 * theta[:, 0].square()


def _banana(theta: Tensor) -> Tensor:
    a, b = theta[:, 0], theta[:, 1]
    return a**4 / 10 + 0.5 * (4 * (b + 1.2) - a * a).square()


def _banana_gradient(theta: Tensor) -> Tensor:
    a, b = theta[:, 0], theta[:, 1]
    across = 4 * (b + 1.2) - a * a
    return torch.stack([0.4 * a**3 - 2 * a * across, 4 * across], dim=1)


def targets() -> tuple[Target, Target]:
    """The two on the line."""
    return (
        Target(
            "one peak", _one_peak, lambda x: x, _bins(_one_peak, np.linspace(-5, 5, 41)), (0.0,)
        ),
        Target(
            "two peaks",
            _two_peaks,
            lambda x: 4 * x**3 - 4 * x,
            _bins(_two_peaks, np.linspace(-2.6, 2.6, 41)),
            (1.0,),
        ),
    )


def plane() -> Target:
    """The correlated one in the plane."""
    edges = np.linspace(-4.2, 4.2, 29), np.linspace(-2.2, 3.0, 27)
    return Target("plane", _banana, _banana_gradient, _bins(_banana, *edges), (0.0, -1.2))


def metric_of(target: Target) -> Metric:
    """1.5 |U + 1/2|^(1/2) for every coordinate, its root softened at 0."""

    def metric(theta: Tensor) -> tuple[Tensor, Tensor]:
        level = (target.potential(theta) + 0.5)[:, None]
        square = level.square() + SOFT**2
        value = 1.5 * square**0.25
        slope = 0.75 * level * square**-0.75 * target.gradient(theta)
        return value.expand_as(theta), slope

    return metric


def sampler_of(name: str, target: Target) -> Sampler:
    """The three that are compared, the latter two with friction 1."""
    if name == "SGLD":
        return SGLD()
    return SGHMC(1.0) if name == "SGHMC" else SGRHMC(metric_of(target), 1.0)


class Curve(NamedTuple):
    """Kullback-Leibler divergence of chains' histograms, over the steps so far."""

    steps: Vector  # (m,)
    mean: Vector  # (m,), over chains
    error: Vector  # (m,)


def explore(
    target: Target,
    name: str,
    step_size: float,
    steps: Sequence[int],
    chains: int,
    seed: Sequence[int],
) -> Curve:
    """Chains from the target's start, and how far their histograms are from the truth."""
    errors, source = noise(*seed, 1), noise(*seed, 2)

    def gradient(theta: Tensor) -> Tensor:
        return target.gradient(theta) + errors.normal(theta, GRADIENT_NOISE)

    start = torch.tensor([target.start], dtype=torch.float64).repeat(chains, 1)
    counts = target.bins.counts(chains)
    mean, error = [], []
    moves = chain(sampler_of(name, target), CoRV(Identity()), gradient, start, step_size,
                  max(steps), source)  # fmt: skip
    for t, (theta, _) in enumerate(moves, 1):
        target.bins.add(counts, theta)
        if t in steps:
            found = target.bins.divergence(counts)
            mean.append(found.mean())
            error.append(found.std() / math.sqrt(chains))
    return Curve(np.array(steps, np.float64), np.array(mean), np.array(error))


def best(
    target: Target, name: str, sizes: Sequence[float], steps: int, chains: int, seed: int, key: int
) -> float:
    """The step size with the least divergence, on chains of their own."""
    found = [
        explore(target, name, size, [steps], chains, (seed, key, 0, i)).mean[-1]
        for i, size in enumerate(sizes)
    ]
    return sizes[int(np.argmin(found))]


SIZES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)


def _table(rows: Sequence[Sequence[str | int | float]]) -> dict[str, list[str | int | float]]:
    names = ("target", "sampler", "step size", "steps", "KL divergence", "its error")
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


def _of(curve: Curve) -> str:
    return f"{curve.mean[-1]:.4f} +- {curve.error[-1]:.4f}"


def _below(one: Curve, other: Curve, factor: float = 1.0) -> bool:
    """Not above, within the errors."""
    error = ERRORS * math.hypot(one.error[-1], factor * other.error[-1])
    return bool(one.mean[-1] <= factor * other.mean[-1] + error)


def on_the_line(quick: bool, seed: int) -> Result:
    """Both targets on the line: divergence over the steps, each sampler at its best step size."""
    chains, pilot, longest = (60, 1000, 2000) if quick else (200, 5000, 20_000)
    sizes = SIZES[1::2] if quick else SIZES
    steps = [longest // 16, longest // 4, longest]
    rows: list[Sequence[str | int | float]] = []
    claims, curves = [], []
    for key, target in enumerate(targets()):
        found: dict[str, Curve] = {}
        for i, name in enumerate(NAMES):
            at = 10 * key + i
            size = best(target, name, sizes, pilot, chains, seed, at)
            found[name] = curve = explore(target, name, size, steps, chains, (seed, at, 1))
            for line in zip(curve.steps.astype(int).tolist(), curve.mean.tolist(),
                            curve.error.tolist(), strict=True):  # fmt: skip
                rows.append((target.name, name, size, *line))
        curves.append((target.name, found))
        sgld, sghmc, riemann = (found[name] for name in NAMES)
        said = ", ".join(f"{name} {_of(found[name])}" for name in NAMES)
        claims += [
            Claim(
                f"{target.name}: SGHMC and gSGRHMC are at least as good as SGLD",
                f"KL divergence after {longest} steps: {said}"
                + (
                    "; at equal forgetting the gradient's noise heats SGHMC 2 / C = 2 times as much"
                    if target.name == "one peak"
                    else ""
                ),
                _below(sghmc, sgld) and _below(riemann, sgld),
            ),
            Claim(
                f"{target.name}: SGHMC and gSGRHMC are about as good as each other",
                f"within a factor of 2: {_of(sghmc)} and {_of(riemann)}",
                _below(sghmc, riemann, 2.0) and _below(riemann, sghmc, 2.0),
            ),
        ]
    return Result(_table(rows), claims, lambda figure: _draw(curves, figure))


def in_the_plane(quick: bool, seed: int) -> Result:
    """The correlated target: divergence over the steps."""
    chains, pilot, longest = (40, 1000, 3000) if quick else (100, 5000, 30_000)
    sizes = SIZES[1:5:2] if quick else SIZES[:5]
    steps = np.unique(np.geomspace(longest / 100, longest, 7).astype(int)).tolist()
    target = plane()
    rows: list[Sequence[str | int | float]] = []
    found: dict[str, Curve] = {}
    for i, name in enumerate(NAMES):
        size = best(target, name, sizes, pilot, chains, seed, 30 + i)
        found[name] = curve = explore(target, name, size, steps, chains, (seed, 30 + i, 1))
        for line in zip(curve.steps.astype(int).tolist(), curve.mean.tolist(),
                        curve.error.tolist(), strict=True):  # fmt: skip
            rows.append((target.name, name, size, *line))
    sgld, sghmc, riemann = (found[name] for name in NAMES)
    falling = all(all(one > two for one, two in pairwise(curve.mean)) for curve in (sghmc, riemann))
    said = ", ".join(f"{name} {_of(found[name])}" for name in NAMES)
    claims = [
        Claim(
            "SGHMC and gSGRHMC explore the distribution, better than SGLD",
            f"KL divergence after {longest} steps: {said}",
            falling and _below(sghmc, sgld) and _below(riemann, sgld),
        ),
        Claim(
            "gSGRHMC's divergence is below SGHMC's",
            f"{_of(riemann)} against {_of(sghmc)}",
            riemann.mean[-1]
            < sghmc.mean[-1] - ERRORS * math.hypot(riemann.error[-1], sghmc.error[-1]),
        ),
    ]
    return Result(_table(rows), claims, lambda figure: _draw([(target.name, found)], figure))


def _draw(curves: Sequence[tuple[str, dict[str, Curve]]], figure: Figure) -> None:
    axes = figure.subplots(1, len(curves), squeeze=False)[0]
    for axis, (title, found) in zip(axes, curves, strict=True):
        for (name, curve), colour in zip(found.items(), COLOURS, strict=True):
            axis.errorbar(curve.steps, curve.mean, 2 * curve.error, fmt="o-", ms=4, lw=1.2,
                          capsize=2, color=colour, label=name)  # fmt: skip
        axis.set(xscale="log", yscale="log", xlabel="steps", title=title)
        axis.legend(fontsize="small")
    axes[0].set_ylabel("KL divergence of a chain's histogram, mean +- 2 errors")


EXPERIMENTS = (
    Experiment(
        "recipe-1d",
        "Ma et al. 2015, section 4.1, figure 2 left",
        "How fast SGLD, SGHMC and gSGRHMC learn a target with one peak and one with two",
        on_the_line,
    ),
    Experiment(
        "recipe-2d",
        "Ma et al. 2015, section 4.1, figure 2 right",
        "How fast SGLD, SGHMC and gSGRHMC learn a strongly correlated target in the plane",
        in_the_plane,
    ),
)
