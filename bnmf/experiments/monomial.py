"""Monomial Gamma kinetics (Zhang et al. 2017, appendices D, M and N).

*Five wells.* Appendix D is U = exp(E), E = 3/4 theta^2 - 3/2 sum_i c_i sin(pi i (theta + 4) / 4).
Read so, it has five wells, and barriers 11 to 19 above their bottoms: no process with that law
gets over them in a run: a sampler that did would have left the law. With U = E wells at the same
places hold 99% of the mass, with barriers of at most 6: this is where samplers are compared.

A chain's histogram after a given number of gradients shows mixing and bias at once, and each
sampler is judged at its own best step. At equal steps a bound is known (transition states): the
rate of getting over a barrier is at most E|K'| / 2 times the density at its top, and E|K'| =
2 exp(-K(0)) / int exp(-K): heavier tails make momenta that are larger but slower. A fresh momentum
has more energy the larger a is (K is about Gamma(a)), so that more trajectories get over a barrier,
which is the paper's case for it; but they are the longer, and gradients are what a chain pays for.
A bounded or falling K' also bears longer steps before the discretised chain is lost.

*Slice sampling.* With Gaussian potentials whose minima have variance V over minibatches, a slice
step has the mean mu_t and the variance ((theta - mu_t)^2 + 2 s^2) / 3, hence the stationary
variance s^2 + 2 V. For minibatches of m of N, without replacement, V is about s^2 (N / m - 1), up
to the leverage of the instances: the draws' deviation is about (2 N / m - 1)^(1/2) times too large.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from scipy import integrate, optimize, stats
from torch import Tensor

from bnmf.domains import CoRV
from bnmf.experiments.base import (
    Claim,
    Experiment,
    Result,
    Vector,
    autocorrelation_time,
    chain,
    noise,
)
from bnmf.experiments.bins import Bins
from bnmf.random import Noise
from bnmf.samplers import Sampler
from bnmf.samplers.kinetics import Gaussian, Kinetics, MonomialGamma
from bnmf.samplers.sghmc import SGHMC
from bnmf.samplers.sgmgt import SGMGT
from bnmf.samplers.sgnht import SGNHT
from bnmf.samplers.slice import NaiveSlice
from bnmf.transforms import Identity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLAIN = CoRV(Identity())

# -- appendix D: five wells ----------------------------------------------------------------

WEIGHTS = torch.tensor(
    [-0.47, -0.83, -0.71, -0.02, 0.24, 0.01, 0.27, -0.37, 0.87, -0.37], dtype=torch.float64
)
WAVES = math.pi / 4 * torch.arange(1, 11, dtype=torch.float64)


def exponent(theta: Tensor) -> Tensor:
    """E of theta (n, 1)."""
    waves = torch.sin(WAVES * (theta + 4.0)) @ WEIGHTS[:, None]
    return 0.75 * theta.square() - 1.5 * waves


def exponent_slope(theta: Tensor) -> Tensor:
    """E' of theta (n, 1)."""
    waves = torch.cos(WAVES * (theta + 4.0)) @ (WEIGHTS * WAVES)[:, None]
    return 1.5 * theta - 1.5 * waves


class Potential(NamedTuple):
    """U and U' of theta (n, 1)."""

    name: str
    level: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


TEMPERED = Potential("U = E", exponent, exponent_slope)
PRINTED = Potential(
    "U = exp(E)",
    lambda theta: exponent(theta).exp(),
    lambda theta: exponent(theta).exp() * exponent_slope(theta),
)
GRADIENT_NOISE = 5.0  # its standard deviation; U' itself has 9.8 under exp(-E)
RESAMPLE = 100  # steps, as in the appendix
FRICTION = 1.0  # s_p and A; 0.3 to 3 change little


class Wells:
    """The wells of a potential that hold at least 0.5% of the mass."""

    LEAST = 0.005

    def __init__(self, potential: Potential) -> None:
        def at(of: Callable[[Tensor], Tensor]) -> Callable[[float], float]:
            return lambda x: float(of(torch.tensor([[x]], dtype=torch.float64)))

        grid = np.linspace(-2.6, 3.4, 1201)
        slopes = potential.slope(torch.from_numpy(grid)[:, None]).numpy()[:, 0]
        turns = np.flatnonzero(slopes[:-1] * slopes[1:] < 0)
        roots = np.array(
            [optimize.brentq(at(potential.slope), grid[i], grid[i + 1]) for i in turns]
        )
        down = slopes[turns] < 0
        ends = np.concatenate([[-6.0], roots[~down], [6.0]])
        mass = np.array(
            [
                integrate.quad(lambda x: math.exp(-at(potential.level)(x)), a, b, limit=200)[0]
                for a, b in itertools.pairwise(ends)
            ]
        )
        self.norm = float(mass.sum())
        mass /= self.norm
        kept = mass >= self.LEAST
        self.bottoms: Vector = roots[down][kept]
        self.mass: Vector = mass[kept]
        tops = roots[~down]
        self.tops: Vector = tops[(tops > self.bottoms[0]) & (tops < self.bottoms[-1])]
        level = potential.level(torch.from_numpy(self.tops)[:, None]).numpy()[:, 0]
        bottom = potential.level(torch.from_numpy(self.bottoms)[:, None]).numpy()[:, 0]
        # from the lower of its two sides, and from the higher one
        self.highest: Vector = level - np.minimum(bottom[:-1], bottom[1:])
        self.lowest: Vector = level - np.maximum(bottom[:-1], bottom[1:])
        self.at_top: Vector = np.exp(-level) / self.norm


CORE = 0.15  # a chain is in another well once it is that near its bottom


class Visits:
    """Which well each chain was in last, and how often that changed."""

    def __init__(self, wells: Wells, chains: int) -> None:
        self._bottoms = torch.from_numpy(wells.bottoms)
        self._last = torch.full((chains,), -1)
        self.changes = torch.zeros(chains, dtype=torch.float64)

    def see(self, theta: Tensor) -> None:
        """One step's theta (n, 1)."""
        far, well = (theta - self._bottoms).abs().min(dim=1)
        inside = far < CORE
        self.changes += inside & (self._last >= 0) & (well != self._last)
        self._last = torch.where(inside, well, self._last)


class Kind(NamedTuple):
    """A sampler of the comparison."""

    name: str
    sampler: Sampler
    kinetics: Kinetics
    diffusive: bool
    colour: str


def _kinds() -> tuple[Kind, ...]:
    made = [Kind("SGNHT", SGNHT(FRICTION, per="row"), Gaussian(), False, "tab:gray")]
    family: tuple[tuple[str, Kinetics, str], ...] = (
        ("SGNHT (ABOBA)", Gaussian(), "tab:blue"),
        ("SGMGT a = 1", MonomialGamma(1), "tab:orange"),
        ("SGMGT a = 2", MonomialGamma(2), "tab:red"),
    )
    for name, kinetics, colour in family:
        made.append(Kind(name, SGMGT(FRICTION, kinetics), kinetics, False, colour))
    for name, kinetics, colour in family:
        # the diffusions of the appendix's tables
        sampler = SGMGT(FRICTION, kinetics, position_diffusion=0.1, thermostat_diffusion=0.1)
        title = name.replace(" (ABOBA)", "-D").replace("SGMGT", "SGMGT-D")
        made.append(Kind(title, sampler, kinetics, True, colour))
    return tuple(made)


KINDS = _kinds()


def speed(kinetics: Kinetics) -> float:
    """E|K'(p)| under exp(-K), by quadrature."""

    def slope(p: float) -> float:
        return float(kinetics.slopes(torch.tensor([p], dtype=torch.float64))[0])

    if isinstance(kinetics, Gaussian):
        return math.sqrt(2.0 / math.pi)
    assert isinstance(kinetics, MonomialGamma)

    def weight(p: float) -> float:
        return math.exp(-float(kinetics.energy(torch.tensor([p], dtype=torch.float64))))

    top = 40.0**kinetics.power
    knots = [0.01, 0.1, 1.0, 10.0]
    total = integrate.quad(weight, 0.0, top, points=knots, limit=400)[0]
    return float(
        integrate.quad(lambda p: slope(p) * weight(p), 0.0, top, points=knots, limit=400)[0] / total
    )


class Run(NamedTuple):
    """A sampler at one step size."""

    potential: Potential
    kind: Kind
    step_size: float
    distances: Vector  # total variation of each chain's histogram
    bias: float  # that of all chains' second halves together
    memory: float  # autocorrelation time of theta, in steps
    changes: Vector  # of wells, each chain
    shares: Vector  # of the bins, all chains
    steps: int

    @property
    def choosing(self) -> float:
        """The mean distance of the half of the chains by which a step size is chosen."""
        return float(self.distances[: len(self.distances) // 2].mean())

    @property
    def distance(self) -> float:
        """That of the other half, which is reported."""
        return float(self.distances[len(self.distances) // 2 :].mean())

    @property
    def error(self) -> float:
        """Its standard error."""
        half = self.distances[len(self.distances) // 2 :]
        return float(half.std(ddof=1)) / math.sqrt(len(half))


def explore(
    potential: Potential,
    kind: Kind,
    step_size: float,
    chains: int,
    steps: int,
    wells: Wells,
    bins: Bins,
    seed: Sequence[int],
) -> Run:
    """Chains from the deepest well."""
    source = noise(*seed, 0)
    start = float(wells.bottoms[np.argmax(wells.mass)])
    run = chain(
        kind.sampler,
        PLAIN,
        lambda theta: potential.slope(theta) + source.normal(theta, GRADIENT_NOISE),
        torch.full((chains, 1), start, dtype=torch.float64),
        step_size,
        steps,
        noise(*seed, 1),
        resample_every=None if isinstance(kind.sampler, SGNHT) else RESAMPLE,
    )
    visits = Visits(wells, chains)
    all_counts, late = bins.counts(chains), bins.counts(chains)
    series = np.empty((steps, chains))
    for t, (theta, _) in enumerate(run):
        bins.add(all_counts, theta)
        if t >= steps // 2:
            bins.add(late, theta)
        visits.see(theta)
        series[t] = theta.numpy()[:, 0]
    lost = not np.isfinite(series).all() or np.abs(series).max() > 100.0
    return Run(
        potential,
        kind,
        step_size,
        bins.variation(all_counts),
        float(bins.variation(late.sum(0, keepdim=True))[0]),
        math.nan if lost else autocorrelation_time(series),
        visits.changes.numpy(),
        (all_counts.sum(0) / all_counts.sum()).numpy(),
        steps,
    )


COMMON = 0.04  # the step size at which well changes are compared


def five_well(quick: bool, seed: int) -> Result:
    """Appendix D."""
    chains, steps = (200, 600) if quick else (200, 10_000)
    step_sizes = (COMMON, 0.12) if quick else (0.02, COMMON, 0.06, 0.08, 0.12, 0.16, 0.24)
    wells, printed = Wells(TEMPERED), Wells(PRINTED)
    edges = np.concatenate([[-6.0], np.linspace(-2.4, 2.8, 53), [6.0]])

    def binned(potential: Potential) -> Bins:
        return Bins(lambda x: potential.level(torch.from_numpy(x)).numpy()[:, 0], [edges])

    bins = binned(TEMPERED)
    runs = [
        explore(TEMPERED, kind, h, chains, steps, wells, bins, (seed, k, i))
        for k, kind in enumerate(KINDS)
        for i, h in enumerate(step_sizes)
    ]
    best = {
        kind.name: min((r for r in runs if r.kind is kind), key=lambda r: r.choosing)
        for kind in KINDS
    }
    exact = binned(PRINTED)
    stuck = [
        explore(PRINTED, kind, 0.01, chains, steps // 4, printed, exact, (seed, k, len(step_sizes)))
        for k, kind in enumerate(KINDS)
    ]
    rows = [*runs, *stuck]
    table: dict[str, Sequence[str | int | float]] = {
        "potential": [r.potential.name for r in rows],
        "sampler": [r.kind.name for r in rows],
        "step size": [r.step_size for r in rows],
        "steps": [r.steps for r in rows],
        "total variation of a chain": [r.distance for r in rows],
        "its error": [r.error for r in rows],
        "of all chains' second half": [r.bias for r in rows],
        "autocorrelation time / steps": [r.memory for r in rows],
        "well changes / 1000 steps": [1e3 * float(r.changes.mean()) / r.steps for r in rows],
        "best step": [
            "yes" if r.potential is TEMPERED and best[r.kind.name] is r else "" for r in rows
        ],
    }
    common = {r.kind.name: r for r in runs if r.step_size == COMMON}
    return Result(
        table,
        [
            _larger(best, "SGMGT a = 1", "SGNHT"),
            _larger(best, "SGMGT a = 2", "SGNHT"),
            _larger(best, "SGMGT a = 2", "SGMGT a = 1"),
            *(_diffusive(best, common, name) for name in ("SGMGT a = 1", "SGMGT a = 2")),
            _by_kinetics(common),
            _as_printed(stuck, printed),
        ],
        partial(_draw_wells, runs, best, bins, edges),
    )


def _figures(best: dict[str, Run], *names: str) -> str:
    return ", ".join(
        f"{name} {best[name].distance:.3f} +- {best[name].error:.3f} (h = {best[name].step_size:g})"
        for name in names
    )


def _better(one: Run, other: Run) -> bool:
    return one.distance < other.distance - 3.0 * math.hypot(one.error, other.error)


def _larger(best: dict[str, Run], one: str, other: str) -> Claim:
    """The distances, and the control: Gaussian momenta in SGMGT's own integrator."""
    names = list(dict.fromkeys([one, other, "SGNHT (ABOBA)"]))
    found = f"total variation of a chain {_figures(best, *names)}"
    if not _better(best[one], best["SGNHT (ABOBA)"]):
        found += "; Gaussian momenta in SGMGT's own integrator do no worse: no gain of the kinetics"
    return Claim(
        f"{one} mixes better between wells than {other}, each at its best step",
        found,
        _better(best[one], best[other]),
    )


def _diffusive(best: dict[str, Run], common: dict[str, Run], name: str) -> Claim:
    more = name.replace("SGMGT", "SGMGT-D")
    changes = [1e3 * float(common[n].changes.mean()) / common[n].steps for n in (name, more)]
    return Claim(
        f"{more} mixes better than {name}, each at its best step",
        f"total variation of a chain {_figures(best, more, name)}; at h = {COMMON:g} it changes "
        f"wells {changes[1]:.2f} times in 1000 steps instead of {changes[0]:.2f}, but the gradient "
        "of the position's diffusion is one Euler step, with noise that no thermostat takes out: "
        "total variation of all its chains there "
        f"{common[more].bias:.3f} instead of {common[name].bias:.3f}",
        _better(best[more], best[name]),
    )


def _by_kinetics(common: dict[str, Run]) -> Claim:
    names = ("SGNHT (ABOBA)", "SGMGT a = 1", "SGMGT a = 2")
    rates = [common[n].changes / common[n].steps * 1e3 for n in names]
    means = [float(rate.mean()) for rate in rates]
    errors = [float(rate.std(ddof=1)) / math.sqrt(len(rate)) for rate in rates]
    gaps = [
        means[i + 1] - means[i] > 3.0 * math.hypot(errors[i], errors[i + 1])
        for i in range(len(names) - 1)
    ]
    found = ", ".join(
        f"{n} {mean:.3f} +- {error:.3f} with E|K'| = {speed(common[n].kind.kinetics):.3f}"
        for n, mean, error in zip(names, means, errors, strict=True)
    )
    return Claim(
        f"At equal steps (h = {COMMON:g}) wells change more often the larger a is",
        f"changes in 1000 steps: {found}",
        all(gaps),
    )


def _as_printed(stuck: Sequence[Run], wells: Wells) -> Claim:
    longest = stuck[0].steps * stuck[0].step_size
    expected = [0.5 * speed(r.kind.kinetics) * float(wells.at_top.max()) * longest for r in stuck]
    crossed = [int((r.changes > 0).sum()) for r in stuck]
    return Claim(
        "As printed, with U = exp(E), wells are mixed",
        f"the {len(wells.bottoms)} wells' barriers are {wells.lowest.min():.1f} to "
        f"{wells.highest.max():.1f} high; chains of {len(stuck[0].changes)} that ever change wells "
        f"in {stuck[0].steps} steps of {stuck[0].step_size:g}: {max(crossed)} at most over all "
        "samplers; an exact process without diffusion in theta gets over a given barrier, up or "
        f"down, {max(expected):.1g} times at most in that time",
        min(crossed) > 0,
    )


def _draw_wells(
    runs: Sequence[Run], best: dict[str, Run], bins: Bins, edges: Vector, figure: Figure
) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    width = np.diff(edges)[1:-1]
    left.stairs(bins.truth[1:-1] / width, edges[1:-1], color="black", lw=1.8, label="truth")
    for kind in KINDS:
        style = "--" if kind.diffusive else "-"
        run = best[kind.name]
        if kind.name != "SGNHT (ABOBA)":
            density = run.shares[1:-1] / width
            middle = 0.5 * (edges[1:-2] + edges[2:-1])
            left.plot(middle, density, style, color=kind.colour, lw=1.0, label=kind.name)
        mine = [r for r in runs if r.kind is kind]
        right.plot(
            [r.step_size for r in mine],
            [r.distance for r in mine],
            style,
            marker="o",
            markersize=3,
            color=kind.colour,
            label=kind.name,
        )
    left.set_yscale("log")
    left.set_ylim(0.002, 3.0)
    left.set_xlabel("θ")
    left.set_ylabel("density")
    left.set_title("All chains, each sampler at its best step", fontsize="medium")
    left.legend(fontsize="x-small", loc="upper left")
    right.set_xscale("log")
    right.set_xlabel("step size h")
    right.set_ylabel(f"total variation of a chain of {runs[0].steps:,} steps")
    right.set_title("Short steps mix slowly, long ones are biased", fontsize="medium")
    right.set_ylim(0.0, 0.8)
    ticks = [h for h in sorted({r.step_size for r in runs}) if h != 0.06]
    right.set_xticks(ticks, [f"{h:g}" for h in ticks])
    right.minorticks_off()
    right.legend(fontsize="x-small")
    figure.suptitle("Five wells, U = E: histograms against the truth")


# -- appendices M and N: slice sampling with minibatches -----------------------------------

INSTANCES = 100
BETA = 1.0
ITERATIONS = 2_000
PRIOR_PRECISION = 1.0
DIFFUSION = 7.0  # the appendix's A
STEP = 0.1
SOFTENING = 1.0
LAPLACIAN = "stochastic Laplacian HMC"
NAIVE = "naive slice"
BARE = "Laplacian HMC, no friction"


class Line(NamedTuple):
    """y_i ~ N(beta x_i, 1) with beta ~ N(0, 1 / PRIOR_PRECISION), and its posterior."""

    x: Tensor  # (N,)
    y: Tensor
    mean: float
    deviation: float

    @staticmethod
    def make(seed: int) -> Line:
        """N instances; the appendix does not print x: ours is uniform on (-1, 1)."""
        rng = np.random.default_rng((seed, 7))
        x = rng.uniform(-1.0, 1.0, INSTANCES)
        y = BETA * x + rng.standard_normal(INSTANCES)
        precision = float(x @ x) + PRIOR_PRECISION
        return Line(
            torch.from_numpy(x),
            torch.from_numpy(y),
            float(x @ y) / precision,
            precision**-0.5,
        )

    def sums(self, m: int, chains: int, source: Noise) -> tuple[Tensor, Tensor]:
        """N/m sum x^2 and N/m sum x y of a minibatch for each chain, both (chains,)."""
        if m == len(self.x):
            one = self.x.new_ones(chains)
            return one * (self.x @ self.x), one * (self.x @ self.y)
        scores = source.uniform(self.x.new_empty(chains, len(self.x)))
        chosen = scores.topk(m, dim=1, sorted=False).indices
        x, y = self.x[chosen], self.y[chosen]
        weight = len(self.x) / m
        return weight * x.square().sum(1), weight * (x * y).sum(1)

    def sliced_deviation(self, m: int, source: Noise) -> float:
        """(2 V + s^2)^(1/2) of naive slice sampling, from 20,000 independent minibatches."""
        square, product = self.sums(m, 20_000, source)
        precision = square + PRIOR_PRECISION
        off = product / precision - self.mean
        return float((2.0 * off.square() + precision.reciprocal()).mean().sqrt())

    def gradient_variance(self, m: int) -> float:
        """Of the minibatch gradient at the posterior mean, without replacement."""
        of_each = (self.x * (self.mean * self.x - self.y)).numpy()
        n = len(of_each)
        return n * n / m * (1.0 - m / n) * float(of_each.var(ddof=1))


def sliced(line: Line, m: int, chains: int, iterations: int, seed: Sequence[int]) -> Vector:
    """beta (iterations, chains) of naive stochastic slice sampling."""
    source, batches = noise(*seed, 0), noise(*seed, 1)
    sampler = NaiveSlice(width=4.0 * line.deviation)
    beta = torch.full((chains,), line.mean, dtype=torch.float64)
    drawn = np.empty((iterations, chains))
    for t in range(iterations):
        square, product = line.sums(m, chains, batches)
        beta = sampler.step(beta, partial(_potential, square, product), source)
        drawn[t] = beta.numpy()
    return drawn


def _potential(square: Tensor, product: Tensor, beta: Tensor) -> Tensor:
    return 0.5 * (square + PRIOR_PRECISION) * beta.square() - product * beta


def laplacian(
    line: Line, m: int, chains: int, iterations: int, seed: Sequence[int], friction: float
) -> tuple[Vector, float]:
    """beta of stochastic Laplacian HMC, and its step: the appendix's, or as long as B allows.

    The noise to inject, 2 A - h B, must not be negative: h is at most A / B.
    """
    estimate = line.gradient_variance(m) if friction else 0.0
    h = min(STEP, friction / estimate) if estimate else STEP
    sampler = SGHMC(friction, estimate, MonomialGamma(1, softening=SOFTENING))
    batches = noise(*seed, 1)

    def gradient(beta: Tensor) -> Tensor:
        square, product = line.sums(m, chains, batches)
        return ((square + PRIOR_PRECISION) * beta[:, 0] - product)[:, None]

    start = torch.full((chains, 1), line.mean, dtype=torch.float64)
    run = chain(sampler, PLAIN, gradient, start, h, iterations, noise(*seed, 0), 1.0, 10)
    return np.stack([theta.numpy()[:, 0].copy() for theta, _ in run]), h


class Spread(NamedTuple):
    """The draws of one sampler with one minibatch size."""

    sampler: str
    m: int
    step_size: float
    ratios: Vector  # of each chain's deviation to the posterior's
    distance: float  # total variation of all draws
    drawn: Vector

    @property
    def ratio(self) -> float:
        """Of the deviation of all chains' draws."""
        return float(np.sqrt(np.mean(self.ratios**2)))

    @property
    def error(self) -> float:
        """Its standard error, from chain to chain."""
        spread = float((self.ratios**2).std(ddof=1)) / math.sqrt(len(self.ratios))
        return spread / (2.0 * self.ratio)


def slices(quick: bool, seed: int) -> Result:
    """Appendices M and N, figure 7."""
    chains, iterations = (40, 500) if quick else (200, ITERATIONS)
    sizes = (30, INSTANCES) if quick else (10, 30, 60, INSTANCES)
    line = Line.make(seed)
    exact = stats.norm(line.mean, line.deviation)
    cuts = exact.ppf(np.linspace(0.0, 1.0, 41))  # 40 bins of equal probability

    def spread(name: str, m: int, h: float, drawn: Vector) -> Spread:
        kept = drawn[iterations // 10 :]
        ratios = np.sqrt(((kept - line.mean) ** 2).mean(axis=0)) / line.deviation
        share = np.histogram(kept, cuts)[0] / kept.size
        return Spread(name, m, h, ratios, 0.5 * float(np.abs(share - 1 / 40).sum()), kept)

    found: list[Spread] = []
    for i, m in enumerate(sizes):
        found.append(spread(NAIVE, m, math.nan, sliced(line, m, chains, iterations, (seed, i, 0))))
        for j, (name, friction) in enumerate(((BARE, 0.0), (LAPLACIAN, DIFFUSION))):
            drawn, h = laplacian(line, m, chains, iterations, (seed, i, 1 + j), friction)
            found.append(spread(name, m, h, drawn))
    derived = {
        m: line.sliced_deviation(m, noise(seed, i, 3)) / line.deviation for i, m in enumerate(sizes)
    }
    table: dict[str, Sequence[str | int | float]] = {
        "sampler": [s.sampler for s in found],
        "minibatch": [s.m for s in found],
        "step size": [s.step_size for s in found],
        "deviation / exact": [s.ratio for s in found],
        "its error": [s.error for s in found],
        "derived": [derived[s.m] if s.sampler == NAIVE else math.nan for s in found],
        "total variation": [s.distance for s in found],
    }
    by = {(s.sampler, s.m): s for s in found}
    naive, right = by[NAIVE, 30], by[LAPLACIAN, 30]
    whole = by[NAIVE, INSTANCES]
    claims = [
        Claim(
            "Naive stochastic slice sampling is over-dispersed (minibatches of 30)",
            f"deviation {naive.ratio:.2f} +- {naive.error:.2f} times the exact one; "
            f"{derived[30]:.2f} derived. With the whole data "
            f"{whole.ratio:.3f} +- {whole.error:.3f}",
            naive.ratio - 3.0 * naive.error > 1.5,
        ),
        Claim(
            "Stochastic Laplacian HMC is near the exact posterior",
            f"deviation {right.ratio:.3f} +- {right.error:.3f} times the exact one, total "
            f"variation {right.distance:.3f}; naive slice sampling {naive.distance:.3f}, Laplacian "
            f"HMC without friction {by[BARE, 30].ratio:.2f} times and {by[BARE, 30].distance:.3f}",
            abs(right.ratio - 1.0) < 0.1 and right.distance < 0.25 * naive.distance,
        ),
    ]
    return Result(table, claims, partial(_draw_slices, line, found, derived))


def _draw_slices(
    line: Line, found: Sequence[Spread], derived: dict[int, float], figure: Figure
) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    at = np.linspace(line.mean - 6 * line.deviation, line.mean + 6 * line.deviation, 400)
    left.plot(at, stats.norm.pdf(at, line.mean, line.deviation), color="black", label="truth")
    styles = {NAIVE: ("tab:red", "s"), BARE: ("tab:gray", "^"), LAPLACIAN: ("tab:blue", "o")}
    for name, (colour, marker) in styles.items():
        mine = [s for s in found if s.sampler == name]
        (shown,) = (s for s in mine if s.m == 30)
        if name != BARE:
            left.hist(
                shown.drawn.ravel(),
                bins=np.linspace(at[0], at[-1], 80),
                density=True,
                color=colour,
                alpha=0.45,
                label=name,
            )
        right.errorbar(
            [s.m for s in mine],
            [s.ratio for s in mine],
            [3.0 * s.error for s in mine],
            color=colour,
            marker=marker,
            label=name,
        )
    right.plot(
        list(derived),
        list(derived.values()),
        "+",
        color="black",
        ms=12,
        zorder=5,
        label="naive slice, derived",
    )
    right.axhline(1.0, color="black", lw=0.8)
    left.set_xlabel("β")
    left.set_ylabel("posterior density")
    left.set_title("Minibatches of 30 of 100", fontsize="medium")
    left.legend(fontsize="small")
    right.set_xlabel("minibatch size m")
    right.set_ylabel("posterior deviation / exact")
    right.legend(fontsize="x-small")
    figure.suptitle(
        "Slice sampling with minibatches is too wide; with friction the noise is undone"
    )


EXPERIMENTS = (
    Experiment(
        "five-well",
        "Zhang et al. 2017, appendix D",
        "Thermostats with Gaussian and monomial Gamma kinetics on a potential of five wells.",
        five_well,
    ),
    Experiment(
        "slice-vs-laplacian",
        "Zhang et al. 2017, appendices M and N, figure 7",
        "Naive stochastic slice sampling against stochastic Laplacian HMC on a regression.",
        slices,
    ),
)
