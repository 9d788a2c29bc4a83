"""One bounded parameter under mirror, Itô formula and change of variable (Yokoi et al., 3 to 5).

The paper does not print the beta's shapes, the truncation, the gradient noise, T or where chains
start; what stands here is our choice. Three things were derived that its figures cannot show.

*Itô.* The SDE of theta that eq. 10 tells in phi has no boundary condition. Where the density at
a bound is above 0 (a gamma's shape below 2) it reaches the bound in finite time, where phi is
infinite: the chain is lost at the bound. No step size mends that; a small one only puts it off.

*Mirror at an infinite density.* From theta < c eps / x with c = 1 - shape, the step
-eps U' = c eps / theta throws the chain beyond x. The chain's own density is above 0 at 0, so
that E[1 / theta] is infinite: with no upper bound E[theta] is infinite from the second step on,
and so is the mean time until a thrown chain is back, which leaves no stationary law. Nor do
small steps help. Near 0 the chain scales with s = sqrt(eps), and from there it gets to x by a
throw with a chance of order s / x, by diffusing (a Bessel process of dimension shape) with one
of order (s / x)^(2 - shape), which is the smaller as eps goes to 0. Chains that leave the bound
by throws are not the target's: the error stays level (measured down to eps = 3e-5).

*Mirror at a bounded slope.* The reflected Euler scheme is itself of weak order 1 (Bossy, Gobet
& Talay 2004): its error falls with the step as CoRV's does, from a larger constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from scipy import sparse, stats
from torch import Tensor

from bnmf.domains import CoRV, Domain, Ito, Mirror
from bnmf.experiments.base import (
    Claim,
    Experiment,
    Result,
    Vector,
    autocorrelation_time,
    chain,
    noise,
)
from bnmf.random import Noise
from bnmf.samplers import Sampler, State
from bnmf.samplers.sgld import SGLD
from bnmf.samplers.sgrld import SGRLD
from bnmf.transforms import POSITIVE, Exp, Icll, Sigmoid, Softplus, Support, Transform

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GRADIENT_NOISE = 1.0  # standard deviation of the Gaussian noise in dU/dtheta
LOST = 300.0  # no target here has a mass of 1e-60 beyond this |position|: a lost chain
TIME = 5.0  # T of eq. 22
COLOURS = {"mirror": "tab:orange", "Itô": "tab:green", "CoRV": "tab:blue"}


@dataclass(frozen=True)
class Target:
    """A density on an interval, with what is asked about it."""

    name: str
    law: Any  # scipy's, frozen
    support: Support
    slope: Callable[[Tensor], Tensor]  # U'
    transform: Transform
    shown: tuple[float, float]  # the histogram's range
    smooth: bool = False  # U' is bounded, so that a grid holds the mirrored chain's law
    test: Callable[[Vector], Vector] = lambda theta: theta  # h of eq. 22
    test_name: str = "θ"

    def truth(self) -> float:
        """E[h(theta)], by quadrature."""
        return float(self.law.expect(lambda theta: self.test(theta)))


def _pole(theta: Tensor) -> Tensor:
    # a lost Itô chain's theta underflows; 1e-300 keeps U' a number, so that it stays at its bound
    return 0.5 / theta.clamp_min(1e-300)


TARGETS = (
    # theta^2, since symmetry alone makes every method's mean right
    Target(
        "Beta(0.5, 0.5)",
        stats.beta(0.5, 0.5),
        (0.0, 1.0),
        lambda theta: _pole(theta) - _pole(1.0 - theta),
        Sigmoid(),
        (0.0, 1.0),
        test=np.square,
        test_name="θ²",
    ),
    Target(
        "Gamma(0.5, scale 0.5)",
        stats.gamma(0.5, scale=0.5),
        (0.0, math.inf),
        lambda theta: _pole(theta) + 2.0,
        Softplus(),
        (0.0, 3.0),
    ),
    Target(
        "N(0, 1) on (-1, 2)",
        stats.truncnorm(-1.0, 2.0),
        (-1.0, 2.0),
        lambda theta: theta.clone(),
        Sigmoid(-1.0, 2.0),
        (-1.0, 2.0),
        smooth=True,
    ),
)


class Method(NamedTuple):
    """A way to keep a target's theta in its interval."""

    name: str
    transform: str
    domain: Domain
    sampler: Sampler


def methods(target: Target) -> tuple[Method, Method, Method]:
    """The paper's three."""
    ito = Ito(target.transform)
    return (
        Method("mirror", "", Mirror(target.support), SGLD()),
        Method("Itô", target.transform.name, ito, SGRLD(ito.metric)),
        Method("CoRV", target.transform.name, CoRV(target.transform), SGLD()),
    )


def noisy(target: Target, source: Noise) -> Callable[[Tensor], Tensor]:
    """U' with Gaussian noise in it, the paper's stand-in for a minibatch's."""
    return lambda theta: target.slope(theta) + source.normal(theta, GRADIENT_NOISE)


def lost(position: Tensor) -> float:
    """The share of chains that are gone: not finite, or where the target has no mass."""
    return float((~(position.abs() <= LOST)).double().mean())


# -- figure 1: densities -------------------------------------------------------------------


class Size(NamedTuple):
    """How much of figure 1 is run; chains x steps are the paper's 100,000 samples."""

    chains: int
    steps: int
    trials: int
    tuning: int  # repeats of the samples that a trial's objective is the mean of
    repeats: int


FULL = Size(chains=20, steps=5000, trials=30, tuning=4, repeats=20)
QUICK = Size(chains=250, steps=400, trials=8, tuning=1, repeats=4)
STEPS = (1e-6, 1.0)  # the range that step sizes are chosen from
BINS = 50


class Histogram:
    """Equal bins over the range shown, and one for all that is outside it."""

    def __init__(self, target: Target) -> None:
        self.edges = np.linspace(*target.shown, BINS + 1)
        inside = np.diff(target.law.cdf(self.edges))
        self.truth = np.append(inside, max(0.0, 1.0 - inside.sum()))
        self._law = target.law

    def shares(self, theta: Vector) -> Vector:
        """Of each bin; what is not a number is outside."""
        counts, _ = np.histogram(theta[np.isfinite(theta)], self.edges)
        return np.append(counts, len(theta) - counts.sum()) / len(theta)

    def distance(self, theta: Vector) -> float:
        """Total variation between the samples' shares and the exact probabilities."""
        return 0.5 * float(np.abs(self.shares(theta) - self.truth).sum())

    def kolmogorov(self, theta: Vector) -> float:
        """Kolmogorov and Smirnov's distance, of which bins are no part."""
        ordered = np.sort(theta[np.isfinite(theta)])
        exact = self._law.cdf(ordered)
        ranks = np.arange(len(ordered) + 1) / len(theta)
        gaps = np.concatenate([ranks[1:] - exact, exact - ranks[:-1], 1.0 - ranks[-1:]])
        return float(gaps.max())

    def independent(self, n: int) -> float:
        """The distance that n independent exact draws have on average, by their variance."""
        deviations = np.sqrt(2.0 / math.pi * self.truth * (1.0 - self.truth) / n)
        return 0.5 * float(deviations.sum())


def samples(
    target: Target, method: Method, step_size: float, size: Size, repeats: int, seed: Sequence[int]
) -> tuple[Vector, float]:
    """theta of each repeat (repeats, chains x steps), and the share of chains lost at the end.

    Chains start at the target's mean; nothing is left out, so that slow mixing shows.
    """
    rows = repeats * size.chains
    start = torch.full((rows, 1), float(target.law.mean()), dtype=torch.float64)
    run = chain(
        method.sampler,
        method.domain,
        noisy(target, noise(*seed, 0)),
        start,
        step_size,
        size.steps,
        noise(*seed, 1),
    )
    drawn = np.empty((size.steps, rows))
    gone = 0.0
    for t, (theta, state) in enumerate(run):
        drawn[t] = theta.numpy()[:, 0]
        if t == size.steps - 1:
            gone = lost(state.position)
    return drawn.T.reshape(repeats, -1), gone


def tune(
    target: Target, method: Method, histogram: Histogram, size: Size, seed: Sequence[int]
) -> float:
    """The step size whose samples are nearest the truth, by TPE."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(
        seed=int(np.random.SeedSequence(seed).generate_state(1)[0]),
        n_startup_trials=min(10, size.trials // 2),
    )

    def objective(trial: optuna.Trial) -> float:
        step_size = trial.suggest_float("step_size", *STEPS, log=True)
        stream = (*seed, 1 + trial.number)
        drawn, _ = samples(target, method, step_size, size, size.tuning, stream)
        return float(np.mean([histogram.distance(theta) for theta in drawn]))

    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=size.trials)
    return float(study.best_params["step_size"])


class Fit(NamedTuple):
    """What a method made of a target at its chosen step size."""

    target: Target
    method: Method
    step_size: float
    distances: Vector  # one a repeat
    kolmogorov: Vector
    lost: float
    shares: Vector  # of the bins, over all repeats
    memory: float  # the autocorrelation time of theta, in units of eps

    @property
    def error(self) -> float:
        """The standard error of the mean distance."""
        return float(self.distances.std(ddof=1)) / math.sqrt(len(self.distances))


def densities(quick: bool, seed: int) -> Result:
    """Figure 1."""
    size = QUICK if quick else FULL
    fits: list[tuple[Fit, Fit, Fit]] = []
    floors = []
    for t, target in enumerate(TARGETS):
        histogram = Histogram(target)
        floors.append(histogram.independent(size.chains * size.steps))
        row = []
        for m, method in enumerate(methods(target)):
            step_size = tune(target, method, histogram, size, (seed, t, m))
            # stream 0 is of the reported chains, and the trials' are 1 and on
            drawn, gone = samples(target, method, step_size, size, size.repeats, (seed, t, m, 0))
            fit = Fit(
                target,
                method,
                step_size,
                np.array([histogram.distance(theta) for theta in drawn]),
                np.array([histogram.kolmogorov(theta) for theta in drawn]),
                gone,
                np.mean([histogram.shares(theta) for theta in drawn], axis=0),
                step_size * autocorrelation_time(drawn.reshape(-1, size.steps).T),
            )
            row.append(fit)
        mirror, ito, corv = row
        fits.append((mirror, ito, corv))
    flat = [fit for row in fits for fit in row]
    table: dict[str, Sequence[str | int | float]] = {
        "target": [fit.target.name for fit in flat],
        "method": [fit.method.name for fit in flat],
        "transform": [fit.method.transform for fit in flat],
        "step size": [fit.step_size for fit in flat],
        "total variation": [float(fit.distances.mean()) for fit in flat],
        "its error": [fit.error for fit in flat],
        "of independent draws": [floor for floor in floors for _ in COLOURS],
        "Kolmogorov-Smirnov": [float(fit.kolmogorov.mean()) for fit in flat],
        "chains lost": [fit.lost for fit in flat],
    }
    return Result(table, [_closest(row) for row in fits], partial(_draw_densities, fits))


def _closest(row: tuple[Fit, Fit, Fit]) -> Claim:
    *others, corv = row
    gaps = [
        (float(fit.distances.mean() - corv.distances.mean()), math.hypot(fit.error, corv.error))
        for fit in others
    ]
    figures = ", ".join(
        f"{fit.method.name} {fit.distances.mean():.4f} +- {fit.error:.4f}" for fit in row
    )
    holds = all(gap > 3.0 * error for gap, error in gaps)
    found = f"total variation {figures}"
    if corv.target.smooth and not holds:
        found += (
            "; U' is bounded, so that mirror's bias is of CoRV's size, while CoRV forgets more "
            f"slowly: its autocorrelation time is {corv.memory:.2g} / ε, mirror's "
            f"{row[0].memory:.2g} / ε"
        )
    return Claim(f"{corv.target.name}: CoRV's histogram is the closest to the truth", found, holds)


def _draw_densities(fits: Sequence[tuple[Fit, Fit, Fit]], figure: Figure) -> None:
    axes = figure.subplots(3, len(fits), sharex="col", sharey="col", squeeze=False)
    for column, row in enumerate(fits):
        histogram = Histogram(row[0].target)
        width = np.diff(histogram.edges)
        exact = histogram.truth[:-1] / width
        for line, fit in enumerate(row):
            at = axes[line, column]
            at.stairs(
                fit.shares[:-1] / width,
                histogram.edges,
                fill=True,
                color=COLOURS[fit.method.name],
                alpha=0.6,
                label="samples",
            )
            at.stairs(exact, histogram.edges, color="black", label="truth")
            note = f"TV {fit.distances.mean():.3f}, ε = {fit.step_size:.2g}"
            if fit.lost:
                note += f", {fit.lost:.0%} lost"
            at.set_title(f"{fit.method.name}: {note}", fontsize="small")
            if not fit.target.smooth:
                at.set_yscale("log")
                at.set_ylim(0.3 * exact.min(), 4.0 * exact.max())
            else:
                at.set_ylim(0.0, 2.0 * exact.max())
            if column == 0:
                at.set_ylabel("density")
        axes[-1, column].set_xlabel(f"θ of {row[0].target.name}")
    axes[0, 0].legend(fontsize="small", loc="upper center")
    figure.suptitle("One bounded parameter, each method at its best step size ε (TV: distance)")


# -- figure 2: the error of an expectation -------------------------------------------------


class _Fixed(Noise):
    """Every normal is ``value`` standard deviations."""

    def __init__(self, value: float) -> None:
        self.value = value

    def normal(self, like: Tensor, std: float = 1.0) -> Tensor:
        return torch.full_like(like, self.value * std)


def exact_error(target: Target, method: Method, step_size: float, fineness: float = 1.0) -> float:
    """E[h] of the discretised chain at T less that of the target, which it starts from.

    The law travels on a grid of positions: one step is a Gaussian kernel, whose mean and
    variance are read off the sampler's own step. The grid is fine beside a step's deviation, and
    what leaves it is reflected: that is Mirror's step, and proxies hardly ever get there.
    """
    low, high = target.support
    if isinstance(method.domain, CoRV):
        ends = torch.tensor([target.law.ppf(3e-8), target.law.isf(3e-8)], dtype=torch.float64)
        low, high = method.domain.position(ends).tolist()
    cells = math.ceil(fineness * (high - low) / (0.7 * math.sqrt(2.0 * step_size)))
    cells = max(cells, math.ceil(400 * fineness))
    width = (high - low) / cells
    at = torch.from_numpy(low + width * (np.arange(cells) + 0.5))[:, None]
    theta = method.domain.factor(at)

    def move(shock: float, error: float) -> Vector:
        """One step with both noises at so many deviations."""
        slope = target.slope(theta) + error * GRADIENT_NOISE
        gradient = method.domain.gradient(at, slope, 1.0)
        state = State(at.clone())
        scale = torch.ones_like(at[:1])
        state = method.sampler.step(state, gradient, step_size, scale, 1.0, _Fixed(shock))
        return state.position.numpy()[:, 0].copy()

    mean = move(0.0, 0.0)
    deviation = np.hypot(move(1.0, 0.0) - mean, move(0.0, 1.0) - mean)[:, None]
    reach = math.ceil(8.5 * float(deviation.max()) / width)
    to = np.floor((mean - low) / width)[:, None] + np.arange(-reach, reach + 1)
    kernel = np.exp(-0.5 * ((low + width * (to + 0.5) - mean[:, None]) / deviation) ** 2)
    kernel /= kernel.sum(axis=1, keepdims=True)
    to = to.astype(np.int64) % (2 * cells)
    to = np.where(to < cells, to, 2 * cells - 1 - to)
    rows = np.repeat(np.arange(cells), to.shape[1])
    onward = sparse.csr_matrix((kernel.ravel(), (to.ravel(), rows)), (cells, cells))

    stretch = np.ones(cells)
    if isinstance(method.domain, CoRV):
        stretch = method.domain.transform.slopes(at)[0].numpy()[:, 0]
    values = theta.numpy()[:, 0]
    start = target.law.pdf(values) * stretch
    start /= start.sum()
    law = start
    for _ in range(round(TIME / step_size)):
        law = onward @ law
    return float(target.test(values) @ (law - start))


class Curve(NamedTuple):
    """A method's signed errors of E[h] over the step sizes."""

    target: Target
    method: Method
    chains: Vector | None  # by Monte Carlo; None for methods that are only computed
    deviation: Vector | None  # standard errors
    lost: Vector | None  # share of chains
    exact: Vector | None  # of the chain's law; None where no grid holds it

    @property
    def best(self) -> Vector:
        """The errors' sizes, the exact ones where there are."""
        errors = self.chains if self.exact is None else self.exact
        assert errors is not None
        return np.abs(errors)

    @property
    def doubt(self) -> Vector:
        """Standard errors of `best`."""
        if self.exact is not None or self.deviation is None:
            return np.zeros_like(self.best)
        return self.deviation


FULL_STEPS, QUICK_STEPS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002), (0.2, 0.1, 0.05)


def simulate(
    target: Target, method: Method, step_size: float, n: int, seed: Sequence[int]
) -> tuple[float, float, float]:
    """The error of n chains' mean of h at T, its standard error, and the share of lost chains.

    Chains start from exact draws of the target: the process itself then stays in it, so that its
    E[h] at T is the truth, as the paper has it. A lost chain counts with the theta it stands at,
    but at most `LOST`: mirrored chains have an infinite mean where they have no upper bound.
    """
    low, high = target.support
    theta = target.law.rvs((n, 1), random_state=np.random.default_rng(tuple(seed)))
    theta = np.clip(theta, np.nextafter(low, high), np.nextafter(high, low))
    run = chain(
        method.sampler,
        method.domain,
        noisy(target, noise(*seed, 0)),
        torch.from_numpy(theta),
        step_size,
        round(TIME / step_size),
        noise(*seed, 1),
    )
    *_, (last, state) = run
    values = target.test(np.minimum(last.numpy()[:, 0], LOST))
    error = float(values.mean()) - target.truth()
    return error, float(values.std(ddof=1)) / math.sqrt(n), lost(state.position)


def convergence(quick: bool, seed: int) -> Result:
    """Figure 2."""
    steps = QUICK_STEPS if quick else FULL_STEPS
    n = 4_000 if quick else 20_000
    curves: list[Curve] = []
    for t, target in enumerate(TARGETS):
        for m, method in enumerate(methods(target)):
            runs = [
                simulate(target, method, e, n, (seed, t, m, 1 + i)) for i, e in enumerate(steps)
            ]
            chains, deviation, gone = np.array(runs).T
            exact = None
            if method.name == "CoRV" or (method.name == "mirror" and target.smooth):
                exact = np.array([exact_error(target, method, e) for e in steps])
            curves.append(Curve(target, method, chains, deviation, gone, exact))
        if target.support == POSITIVE:
            for transform in (Exp(), Icll()):
                other = Method("CoRV", transform.name, CoRV(transform), SGLD())
                exact = np.array([exact_error(target, other, e) for e in steps])
                curves.append(Curve(target, other, None, None, None, exact))
    blank = np.full(len(steps), np.nan)

    def column(of: Callable[[Curve], Vector | None]) -> list[float]:
        found = [of(curve) for curve in curves]
        return [float(v) for one in found for v in (blank if one is None else one)]

    table: dict[str, Sequence[str | int | float]] = {
        "target": [c.target.name for c in curves for _ in steps],
        "h": [c.target.test_name for c in curves for _ in steps],
        "method": [c.method.name for c in curves for _ in steps],
        "transform": [c.method.transform for c in curves for _ in steps],
        "step size": [e for _ in curves for e in steps],
        "exact error": column(lambda c: c.exact),
        "error of chains": column(lambda c: c.chains),
        "its error": column(lambda c: c.deviation),
        "chains lost": column(lambda c: c.lost),
    }
    claims = []
    for target in TARGETS:
        mirror, ito, corv, *others = [c for c in curves if c.target is target]
        claims += [
            _linear(target, steps, corv, others),
            _least(target, steps, corv, (mirror, ito)),
            _stuck(target, ito),
        ]
    return Result(table, claims, partial(_draw_convergence, curves, steps))


def order(steps: Sequence[float], curve: Curve) -> float:
    """The slope of log error against log step size, by least squares."""
    return float(np.polyfit(np.log(steps), np.log(curve.best), 1)[0])


def _linear(target: Target, steps: Sequence[float], corv: Curve, others: Sequence[Curve]) -> Claim:
    slopes = {c.method.transform: order(steps, c) for c in (corv, *others)}
    assert corv.chains is not None and corv.deviation is not None and corv.exact is not None
    apart = np.abs(corv.chains - corv.exact) / corv.deviation
    return Claim(
        f"{target.name}: CoRV's error is of the first order in the step size",
        "log-log slope "
        + ", ".join(f"{slope:.3f} ({name})" for name, slope in slopes.items())
        + f", of exact laws; chains differ from them by at most {apart.max():.1f} standard errors",
        abs(slopes[corv.method.transform] - 1.0) < 0.05,
    )


def _least(target: Target, steps: Sequence[float], corv: Curve, others: Sequence[Curve]) -> Claim:
    ratios = [(other.best - 3.0 * other.doubt) / corv.best for other in others]
    found = ", ".join(
        f"{c.method.name} {c.best.min():.2g} to {c.best.max():.2g} (log-log slope "
        f"{order(steps, c):.2f})"
        for c in (corv, *others)
    )
    return Claim(
        f"{target.name}: CoRV's error is the smallest at every step size",
        f"{found}; less 3 standard errors, mirror's and Itô's are at least "
        f"{ratios[0].min():.2g} and {ratios[1].min():.2g} times CoRV's",
        all(bool((ratio > 1.0).all()) for ratio in ratios),
    )


def _stuck(target: Target, ito: Curve) -> Claim:
    assert ito.lost is not None
    large, small = ito.best[0], ito.best[-1]
    error = math.hypot(ito.doubt[0], ito.doubt[-1])
    return Claim(
        f"{target.name}: smaller steps do not improve Itô",
        f"error {large:.3f} at the largest step, {small:.3f} +- {error:.3f} at the smallest; "
        f"at every step at least {ito.lost.min():.1%} of the chains are lost by T = {TIME:g}, "
        "since the SDE itself reaches the bound",
        bool(small > 0.9 * large - 3.0 * error),
    )


def _draw_convergence(curves: Sequence[Curve], steps: Sequence[float], figure: Figure) -> None:
    axes = figure.subplots(1, len(TARGETS), sharex=True)
    for at, target in zip(axes, TARGETS, strict=True):
        _draw_target(at, [c for c in curves if c.target is target], steps)
    axes[0].set_ylabel(f"|E h(θ) - truth| at T = {TIME:g}")
    figure.suptitle("CoRV's error falls with the step size; mirror's and Itô's need not")


def _draw_target(at: Axes, curves: Sequence[Curve], steps: Sequence[float]) -> None:
    markers = {"mirror": "s", "Itô": "^", "CoRV": "o"}
    plain = {"exp": ":", "icll": "--"}
    for curve in curves:
        name, transform = curve.method.name, curve.method.transform
        at.errorbar(
            steps,
            curve.best,
            3.0 * curve.doubt,
            color=COLOURS[name],
            linestyle=plain.get(transform, "-"),
            marker=markers[name],
            markersize=4,
            label=f"{name} {transform}".strip() + (" (exact)" if curve.exact is not None else ""),
        )
    top = next(c for c in curves if c.method.name == "CoRV").best[0] * 2.0
    at.plot(steps, top * np.array(steps) / steps[0], color="black", lw=0.8, label="slope 1")
    at.set_xscale("log")
    at.set_yscale("log")
    at.minorticks_off()
    at.set_ylim(bottom=0.05 * min(curve.best.min() for curve in curves))
    at.set_xlabel("step size ε")
    at.set_title(f"{curves[0].target.name}, h = {curves[0].target.test_name}", fontsize="medium")
    at.legend(fontsize="x-small", loc="lower right")


EXPERIMENTS = (
    Experiment(
        "bounded-1d",
        "Yokoi et al., figure 1",
        "Mirror, Itô formula and CoRV on one bounded parameter, each at its best step size.",
        densities,
    ),
    Experiment(
        "weak-convergence",
        "Yokoi et al., figure 2",
        "The error of an expectation against the step size under mirror, Itô formula and CoRV.",
        convergence,
    ),
)
