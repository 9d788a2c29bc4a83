"""Samplers of the complete recipe on two lines and a plane (Ma et al. 2015, Experiments).

Not printed: gradient noise, step sizes, friction and numbers of steps; ours are below. Every
sampler is shown at each step size of one grid and judged at its own best one, by the divergence
of a chain's histogram from the truth after a given number of gradients, so that bias and slow
mixing both count; half of the chains choose the step, the others are reported. SGHMC and
gSGRHMC have the friction 1 and know the gradient noise's variance; SGLD has B = 0, as there.

*The metric* D = G^-1 = 1.5 |U + 1/2|^(1/2) is positive where U > -1/2: for theta^2 / 2 and in the
plane. For theta^4 - 2 theta^2 it is 0 at theta^2 = 1 +- 2^(-1/2). There D' is infinite; in the
coordinate y = int D^(-1/2), in which momenta have unit mass, the target's density goes to 0 like
|y|^(1/3), behind an energy that grows without bound: the process never gets across, and the line
is in five pieces. Chains only get across by the error of their steps. The reported gSGRHMC has
|u| rounded to (u^2 + 0.1^2)^(1/2); the printed metric is run beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
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

ROUNDING = 0.1  # of |U + 1/2| in the metric
FRICTION = 1.0


class Target(NamedTuple):
    """A potential of theta (n, d)."""

    name: str
    level: Callable[[Tensor], Tensor]  # (n, d) -> (n, 1)
    slope: Callable[[Tensor], Tensor]  # (n, d) -> (n, d)
    edges: tuple[Vector, ...]  # of bins, each coordinate
    start: tuple[float, ...]
    noise: float  # standard deviation of the gradient's noise, each coordinate

    def bins(self) -> Bins:
        """With their exact probabilities."""
        return Bins(lambda x: self.level(torch.from_numpy(x)).numpy()[:, 0], self.edges)


def _edges(low: float, high: float, bins: int, end_low: float, end_high: float) -> Vector:
    return np.concatenate([[end_low], np.linspace(low, high, bins + 1), [end_high]])


ONE_PEAK = Target(
    "θ²/2",
    lambda theta: theta.square() / 2.0,
    lambda theta: theta.clone(),
    (_edges(-3.0, 3.0, 36, -9.0, 9.0),),
    (0.0,),
    2.0,
)
TWO_PEAKS = Target(
    "θ⁴ - 2θ²",
    lambda theta: theta**4 - 2.0 * theta.square(),
    lambda theta: 4.0 * theta**3 - 4.0 * theta,
    (_edges(-1.8, 1.8, 36, -3.5, 3.5),),
    (1.0,),
    2.0,
)


def _off(theta: Tensor) -> Tensor:
    return 4.0 * (theta[:, 1:] + 1.2) - theta[:, :1].square()


def _plane_slope(theta: Tensor) -> Tensor:
    one, off = theta[:, :1], _off(theta)
    return torch.cat([0.4 * one**3 - 2.0 * one * off, 4.0 * off], dim=1)


PLANE = Target(
    "θ₁⁴/10 + (4(θ₂ + 1.2) - θ₁²)²/2",
    lambda theta: theta[:, :1] ** 4 / 10.0 + _off(theta).square() / 2.0,
    _plane_slope,
    (_edges(-3.0, 3.0, 30, -5.0, 5.0), _edges(-2.2, 1.5, 37, -4.0, 6.5)),
    (0.0, -1.2),
    1.0,
)


def metric(target: Target, rounding: float = 0.0) -> Metric:
    """D = 1.5 |U + 1/2|^(1/2), the same for each coordinate, and dD / dtheta_i."""

    def of(theta: Tensor) -> tuple[Tensor, Tensor]:
        u = target.level(theta) + 0.5
        size = (u.square() + rounding**2).sqrt()
        d = 1.5 * size.sqrt()
        return d.expand_as(theta), 0.75 * u * size**-1.5 * target.slope(theta)

    return of


class Method(NamedTuple):
    """A sampler for a target."""

    name: str
    sampler: Sampler


COLOURS = {
    "SGLD": "tab:green",
    "SGHMC": "tab:orange",
    "gSGRHMC": "tab:blue",
    "gSGRHMC, as printed": "tab:red",
}


def methods(target: Target) -> tuple[Method, ...]:
    """Those of the paper; the metric as printed too, where it is another."""
    b = target.noise**2
    found = (Method("SGLD", SGLD()), Method("SGHMC", SGHMC(FRICTION, b)))
    printed = SGRHMC(metric(target), FRICTION, b)
    if target is not TWO_PEAKS:
        return (*found, Method("gSGRHMC", printed))
    rounded = SGRHMC(metric(target, ROUNDING), FRICTION, b)
    return (*found, Method("gSGRHMC", rounded), Method("gSGRHMC, as printed", printed))


class Run(NamedTuple):
    """A method at one step size."""

    target: Target
    method: str
    step_size: float
    marks: Sequence[int]  # numbers of steps
    divergences: Vector  # (marks, chains), of each chain's histogram so far
    pooled: float  # that of all chains' second halves together
    shares: Vector

    @property
    def choosing(self) -> float:
        """The mean over the half of the chains that choose the step size."""
        return float(self.divergences[-1, : self.divergences.shape[1] // 2].mean())

    @property
    def means(self) -> Vector:
        """Over the other half, at each mark."""
        return np.asarray(self.divergences[:, self.divergences.shape[1] // 2 :].mean(axis=1))

    @property
    def mean(self) -> float:
        """At the end."""
        return float(self.means[-1])

    @property
    def error(self) -> float:
        """Its standard error."""
        half = self.divergences[-1, self.divergences.shape[1] // 2 :]
        return float(half.std(ddof=1)) / math.sqrt(len(half))


def measure(
    target: Target,
    method: Method,
    step_size: float,
    chains: int,
    marks: Sequence[int],
    bins: Bins,
    seed: Sequence[int],
) -> Run:
    """Chains from one place."""
    source = noise(*seed, 0)
    run = chain(
        method.sampler,
        CoRV(Identity()),
        lambda theta: target.slope(theta) + source.normal(theta, target.noise),
        torch.tensor(target.start, dtype=torch.float64).repeat(chains, 1),
        step_size,
        marks[-1],
        noise(*seed, 1),
    )
    counts, late = bins.counts(chains), bins.counts(chains)
    divergences = []
    for t, (theta, _) in enumerate(run):
        bins.add(counts, theta)
        if t >= marks[-1] // 2:
            bins.add(late, theta)
        if t + 1 in marks:
            divergences.append(bins.divergence(counts))
    return Run(
        target,
        method.name,
        step_size,
        marks,
        np.array(divergences),
        float(bins.divergence(late.sum(0, keepdim=True))[0]),
        (late.sum(0) / late.sum()).numpy(),
    )


def sweep(
    target: Target,
    step_sizes: Sequence[float],
    chains: int,
    marks: Sequence[int],
    seed: Sequence[int],
) -> list[Run]:
    """Every method at every step size that its noise estimate allows."""
    bins = target.bins()
    runs = []
    for m, method in enumerate(methods(target)):
        for i, h in enumerate(step_sizes):
            try:
                method.sampler.check(h, 1.0)
            except ValueError:
                continue
            runs.append(measure(target, method, h, chains, marks, bins, (*seed, m, i)))
    return runs


def best_of(runs: Sequence[Run]) -> dict[str, Run]:
    """Each method's run at its best step size."""
    names = dict.fromkeys(run.method for run in runs)
    return {n: min((r for r in runs if r.method == n), key=lambda r: r.choosing) for n in names}


def _table(groups: Sequence[Sequence[Run]]) -> dict[str, Sequence[str | int | float]]:
    chosen = {id(run) for runs in groups for run in best_of(runs).values()}
    rows = [run for runs in groups for run in runs]
    return {
        "potential": [r.target.name for r in rows],
        "sampler": [r.method for r in rows],
        "step size": [r.step_size for r in rows],
        "steps": [r.marks[-1] for r in rows],
        "KL of a chain": [r.mean for r in rows],
        "its error": [r.error for r in rows],
        "KL of all chains' second half": [r.pooled for r in rows],
        "best step": ["yes" if id(r) in chosen else "" for r in rows],
    }


def _figure(run: Run) -> str:
    return f"{run.method} {run.mean:.4f} +- {run.error:.4f} (h = {run.step_size:g})"


def _less(one: Run, other: Run, factor: float = 1.0) -> bool:
    """Whether one's divergence is below the other's, beyond 3 standard errors."""
    return one.mean < factor * other.mean - 3.0 * math.hypot(one.error, factor * other.error)


# -- on the line ---------------------------------------------------------------------------


def line(quick: bool, seed: int) -> Result:
    """The two 1-D distributions."""
    chains, marks = (100, (1_000,)) if quick else (200, (500, 1_000, 2_000, 5_000, 10_000))
    steps = (0.03, 0.1, 0.2) if quick else (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5)
    groups = [
        sweep(target, steps, chains, marks, (seed, t))
        for t, target in enumerate((ONE_PEAK, TWO_PEAKS))
    ]
    claims = [claim for runs in groups for claim in _line_claims(runs)]
    claims.append(_printed(groups[1]))
    return Result(_table(groups), claims, partial(_draw_line, groups))


ALIKE = 1.25  # the factor up to which two divergences are about the same


def _line_claims(runs: Sequence[Run]) -> list[Claim]:
    best = best_of(runs)
    sgld, sghmc, riemann = best["SGLD"], best["SGHMC"], best["gSGRHMC"]
    name = sgld.target.name
    low, high = sorted((sghmc.mean, riemann.mean))
    found = f"KL of a chain {_figure(sghmc)}, {_figure(riemann)}"
    h = max(r.step_size for r in runs if r.step_size <= 0.1)
    equal = [_figure(r) for r in runs if r.step_size == h and r.method in ("SGHMC", "gSGRHMC")]
    return [
        Claim(
            f"U = {name}: SGHMC is about as good as gSGRHMC (within a factor of {ALIKE:g})",
            f"{found}; at equal steps {', '.join(equal)}: what differs is the step they bear",
            high < ALIKE * low,
        ),
        Claim(
            f"U = {name}: both are at least as good as SGLD",
            f"{found}, {_figure(sgld)}",
            not (_less(sgld, sghmc) or _less(sgld, riemann)),
        ),
    ]


def _printed(runs: Sequence[Run]) -> Claim:
    best = best_of(runs)
    rounded, printed = best["gSGRHMC"], best["gSGRHMC, as printed"]
    return Claim(
        f"U = {rounded.target.name}: the metric as printed, which has zeros, serves as well",
        f"KL of a chain {_figure(printed)}, {_figure(rounded)} with the zeros rounded off; of all "
        f"chains' second half {printed.pooled:.4f} and {rounded.pooled:.4f}. Between the zeros at "
        "±0.54 and ±1.31 the exact process never passes, and steps near them are far too long",
        not _less(rounded, printed),
    )


def _draw_line(groups: Sequence[Sequence[Run]], figure: Figure) -> None:
    axes = figure.subplots(2, 2)
    for (left, right), runs in zip(axes, groups, strict=True):
        target, best = runs[0].target, best_of(runs)
        (edges,) = target.edges
        width = np.diff(edges)[1:-1]
        truth = target.bins().truth[1:-1] / width
        left.stairs(truth, edges[1:-1], color="black", lw=1.8, label="truth")
        middle = 0.5 * (edges[1:-2] + edges[2:-1])
        for name, run in best.items():
            left.plot(middle, run.shares[1:-1] / width, color=COLOURS[name], lw=1.0, label=name)
            mine = [r for r in runs if r.method == name]
            right.errorbar(
                [r.step_size for r in mine],
                [r.mean for r in mine],
                [3.0 * r.error for r in mine],
                marker="o",
                markersize=3,
                color=COLOURS[name],
                label=name,
            )
        left.set_ylabel("density")
        left.set_xlabel("θ")
        left.set_title(f"U = {target.name}, at the best steps", fontsize="medium")
        right.set_xscale("log")
        right.set_yscale("log")
        right.set_ylim(0.5 * min(r.mean for r in best.values()), 3.0)
        right.set_xlabel("step size h")
        right.set_ylabel(f"KL after {runs[0].marks[-1]:,} steps")
    handles, labels = axes[1, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize="small")
    figure.suptitle("With momenta a chain's histogram gets nearer to the truth than SGLD's")


# -- in the plane --------------------------------------------------------------------------


COMMON, LONGER = 0.02, 0.025  # step sizes that are compared


def plane(quick: bool, seed: int) -> Result:
    """The 2-D distribution."""
    chains = 100 if quick else 200
    marks = (500, 1_000) if quick else (100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000)
    steps: tuple[float, ...] = (COMMON, LONGER, 0.08, 0.12)
    if not quick:
        steps = (0.01, 0.015, COMMON, LONGER, 0.035, 0.05, 0.08, 0.12, 0.16, 0.2)
    runs = sweep(PLANE, steps, chains, marks, (seed,))
    best = best_of(runs)
    sgld, sghmc, riemann = (best[n] for n in ("SGLD", "SGHMC", "gSGRHMC"))
    equal = {r.method: r for r in runs if r.step_size == COMMON}
    (longer,) = (r for r in runs if r.step_size == LONGER and r.method == "SGHMC")
    claims = [
        Claim(
            "SGHMC and gSGRHMC explore the distribution well",
            f"KL of a chain {_figure(sghmc)}, {_figure(riemann)}, {_figure(sgld)}; of all chains' "
            f"second half {sghmc.pooled:.4f}, {riemann.pooled:.4f}, {sgld.pooled:.4f}",
            _less(sghmc, sgld)
            and _less(riemann, sgld)
            and max(sghmc.pooled, riemann.pooled) < 0.5 * sgld.pooled,
        ),
        Claim(
            "gSGRHMC has a smaller KL divergence than SGHMC, each at its best step",
            f"KL of a chain {_figure(riemann)}, {_figure(sghmc)}",
            _less(riemann, sghmc),
        ),
        Claim(
            "gSGRHMC has a smaller KL divergence than SGHMC at equal steps",
            f"KL of a chain {_figure(equal['gSGRHMC'])}, {_figure(equal['SGHMC'])}; "
            f"it moves by D^(1/2) faster, {_scale():.2f} on average: {_figure(longer)}",
            _less(equal["gSGRHMC"], equal["SGHMC"]),
        ),
    ]
    return Result(_table([runs]), claims, partial(_draw_plane, runs))


def _scale() -> float:
    """E[D^(1/2)] in the plane, on the middle points of a fine grid."""
    axes = [np.linspace(-4.0, 4.0, 401), np.linspace(-3.0, 4.0, 701)]
    grid = torch.from_numpy(np.stack(np.meshgrid(*axes), -1).reshape(-1, 2))
    weight = torch.exp(-PLANE.level(grid))
    d, _ = metric(PLANE)(grid)
    return float((weight * d[:, :1].sqrt()).sum() / weight.sum())


def _draw_plane(runs: Sequence[Run], figure: Figure) -> None:
    best, bins = best_of(runs), PLANE.bins()
    upper, lower = figure.subfigures(2, 1, squeeze=False)[:, 0]
    maps = upper.subplots(1, 1 + len(best), sharex=True, sharey=True)
    by_steps, by_h = lower.subplots(1, 2)
    across, up = (edge[1:-1] for edge in bins.edges)
    top = bins.truth.max()
    for at, name in zip(maps, ("truth", *best), strict=True):
        shares = bins.truth if name == "truth" else best[name].shares
        at.pcolormesh(
            across, up, shares.reshape(bins.shape)[1:-1, 1:-1].T, cmap="Greys", vmin=0.0, vmax=top
        )
        at.set_xlabel("θ₁")
        title = name if name == "truth" else f"{name}, h = {best[name].step_size:g}"
        at.set_title(title, fontsize="medium")
    maps[0].set_ylabel("θ₂")
    for name, run in best.items():
        by_steps.plot(run.marks, run.means, marker="o", color=COLOURS[name], label=name)
        mine = [r for r in runs if r.method == name]
        by_h.errorbar(
            [r.step_size for r in mine],
            [r.mean for r in mine],
            [3.0 * r.error for r in mine],
            marker="o",
            markersize=3,
            color=COLOURS[name],
            label=name,
        )
    for at in (by_steps, by_h):
        at.set_xscale("log")
        at.set_yscale("log")
        at.legend(fontsize="x-small")
    by_h.set_xticks([0.01, COMMON, 0.05, 0.1], ["0.01", f"{COMMON:g}", "0.05", "0.1"])
    by_h.minorticks_off()
    by_h.set_ylim(0.5 * min(r.mean for r in best.values()), 3.0)
    by_h.set_xlabel("step size h")
    by_h.set_ylabel(f"KL after {runs[0].marks[-1]:,} steps")
    by_steps.set_xlabel("steps, each sampler at its best step size")
    by_steps.set_ylabel("KL of a chain")
    figure.suptitle("A curved ridge: shares of bins and the divergence of a chain's histogram")


EXPERIMENTS = (
    Experiment(
        "recipe-1d",
        "Ma et al. 2015, the simulated 1-D distributions",
        "KL divergence of SGLD, SGHMC and gSGRHMC on one peak and on two.",
        line,
    ),
    Experiment(
        "recipe-2d",
        "Ma et al. 2015, the simulated 2-D distribution",
        "KL divergence of SGLD, SGHMC and gSGRHMC on a curved ridge.",
        plane,
    ),
)
