"""The thermostat against fixed friction: Ding et al. 2014, sections 3 and 5.1, appendices B and E.

All chains run on theta itself, as in the paper; many at once instead of one long one. The paper
says neither on which bins its density errors are, nor which numbers its hundred data were. Here
they are standardised, so that no draw's luck stands between its table and ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from scipy import integrate, stats
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
from bnmf.random import Noise
from bnmf.samplers.sghmc import SGHMC
from bnmf.samplers.sgnht import SGNHT
from bnmf.transforms import Identity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ERRORS = 4.0  # Monte Carlo standard errors of every margin
N, MINIBATCH = 100, 10
Key = tuple[str, float, float]  # method, h, A
SETTINGS = tuple(product((0.01, 0.001), (1.0, 10.0)))  # (h, A) of table 1


# -- what the three have in common ------------------------------------------------------------


class Trace(NamedTuple):
    """What is kept of n chains."""

    time: Vector  # (draws,): steps times h
    theta: Vector  # (draws, n, d)
    kinetic: Vector  # (draws, n, d): p^2 / 2 of each parameter
    xi: Vector  # (draws, n)

    def after(self, time: float) -> Trace:
        """Without what came before."""
        late = self.time > time
        return Trace(*(part[late] for part in self))


def chains_of(
    sampler: SGHMC | SGNHT,
    gradient: Callable[[Tensor], Tensor],
    start: Tensor,
    step_size: float,
    steps: int,
    source: Noise,
    every: int = 1,
) -> Trace:
    """Chains from ``start`` (n, d), each ``every``-th step kept."""
    draws = steps // every
    theta, kinetic = (start.new_empty(draws, *start.shape) for _ in range(2))
    xi = torch.full((draws, len(start), 1), sampler.friction, dtype=torch.float64)
    identity = CoRV(Identity())
    run = chain(sampler, identity, gradient, start, step_size, draws * every, source)
    for t, (now, state) in enumerate(run, 1):
        if t % every == 0:
            at = t // every - 1
            theta[at] = now
            assert state.momentum is not None
            kinetic[at] = 0.5 * state.momentum.square()
            if state.thermostat is not None:
                xi[at] = state.thermostat
    times: Vector = step_size * every * np.arange(1.0, draws + 1.0)
    return Trace(times, theta.numpy(), kinetic.numpy(), xi[..., 0].numpy())


class Estimate(NamedTuple):
    """A mean over chains and its Monte Carlo standard error."""

    mean: float
    error: float

    def near(self, value: float, slack: float = 0.0) -> bool:
        """Whether `ERRORS` standard errors and ``slack`` reach ``value``."""
        return abs(self.mean - value) <= ERRORS * self.error + slack

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.error:.1g}"


def estimate(series: Vector) -> Estimate:
    """The mean of (draws, n, ...), its error from the spread of the chains' means."""
    means = series.mean(axis=0)
    if means.ndim > 1:
        means = means.reshape(len(means), -1).mean(axis=1)
    return Estimate(float(means.mean()), float(means.std(ddof=1) / math.sqrt(len(means))))


class Bins(NamedTuple):
    """A histogram's bins and the exact density over each."""

    edges: Vector
    exact: Vector

    @staticmethod
    def of(law: stats.rv_continuous, spreads: float = 4.0, bins: int = 20) -> Bins:
        """Mean +- ``spreads`` standard deviations of a frozen scipy law."""
        middle, reach = float(law.mean()), spreads * float(law.std())
        edges = np.linspace(middle - reach, middle + reach, bins + 1)
        return Bins(edges, np.diff(law.cdf(edges)) / np.diff(edges))

    @property
    def centres(self) -> Vector:
        """Of the bins."""
        middle: Vector = 0.5 * (self.edges[1:] + self.edges[:-1])
        return middle

    def densities(self, theta: Vector) -> Vector:
        """(n, bins) of (draws, n); what lies outside the bins counts in the total."""
        columns = [np.histogram(one, self.edges)[0] for one in theta.T]
        density: Vector = np.stack(columns) / (len(theta) * np.diff(self.edges))
        return density


class Misfit(NamedTuple):
    """How far a density is from the exact one, by its root mean square error over bins."""

    rmse: float
    noise: float  # what Monte Carlo alone gives
    square: float  # rmse^2 - noise^2, unbiased for the mean square of the density's bias
    error: float  # its standard error

    def below(self, other: Misfit) -> bool:
        """Whether the bias is smaller by more than `ERRORS` standard errors of the difference."""
        return other.square - self.square > ERRORS * math.hypot(self.error, other.error)

    def __str__(self) -> str:
        return f"{self.rmse:.3f}"


def misfit(densities: Sequence[Vector], exact: Sequence[Vector]) -> Misfit:
    """Over the bins of all parameters together; densities (n, bins) of each."""
    each, truth = np.concatenate(densities, axis=1), np.concatenate(exact)
    off, n = each.mean(axis=0) - truth, len(each)
    square, noise = np.mean(off**2), np.mean(each.var(axis=0, ddof=1)) / n
    slopes = 2.0 * each @ off / len(off)  # of the square, by each chain
    error = float(slopes.std(ddof=1) / math.sqrt(n))
    return Misfit(math.sqrt(square), math.sqrt(noise), float(square - noise), error)


def subset_sums(values: Tensor, size: int, rows: int, source: torch.Generator) -> Tensor:
    """For each of ``rows`` the sum of ``size`` different rows of ``values``, by Floyd's method.

    The k-th pick is from the first n - size + k + 1; one that is there already gives way to the
    last of these, which makes all subsets equally likely.
    """
    n = len(values)  # at most 256: bytes compare quickly
    ends = torch.arange(n - size + 1, n + 1)[:, None]
    picks = (torch.rand(size, rows, dtype=torch.float64, generator=source) * ends).byte()
    for k in range(1, size):
        taken = (picks[:k] == picks[k]).any(0)
        picks[k].masked_fill_(taken, n - size + k)
    return values[picks.long()].sum(0)


def _table(columns: str) -> dict[str, list[str | int | float]]:
    return {name: [] for name in columns.split()}


def _add(table: dict[str, list[str | int | float]], row: Sequence[str | float]) -> None:
    for column, value in zip(table.values(), row, strict=True):
        column.append(value)


def _list(found: Mapping[Key, str]) -> str:
    """What was found at each h and A."""
    return "; ".join(f"{text} at {_at(key)}" for key, text in found.items())


def _at(key: Key) -> str:
    return f"h = {key[1]:g}, A = {key[2]:g}"


def _ranking(found: Mapping[Key, str]) -> str:
    """What was found, by method."""
    methods = {key[0]: "" for key in found}
    parts = (_list({k: v for k, v in found.items() if k[0] == method}) for method in methods)
    return "; ".join(f"{method} {part}" for method, part in zip(methods, parts, strict=True))


def _neighbours(keys: Iterable[Key]) -> list[tuple[Key, Key]]:
    """(smaller h or larger A, its neighbour) of the same method."""
    known = set(keys)
    pairs = [((m, 0.001, a), (m, 0.01, a)) for m, h, a in known if h == 0.01]
    pairs += [((m, h, 10.0), (m, h, 1.0)) for m, h, a in known if a == 1.0]
    return [pair for pair in pairs if known.issuperset(pair)]


def _style(key: Key) -> dict[str, Any]:
    """A colour for each setting, dashes for SGHMC."""
    method, h, a = key
    dashes = "-" if method == "SGNHT" else "--"
    colour = f"C{SETTINGS.index((h, a))}"
    return {"color": colour, "ls": dashes, "label": f"h = {h:g}, A = {a:g}"}


def running_mean(series: Vector) -> Vector:
    """Over draws and chains."""
    mean: Vector = np.cumsum(series.mean(axis=1)) / np.arange(1, len(series) + 1)
    return mean


# -- figures 1 and 4 --------------------------------------------------------------------------

STEP, B = 0.01, 1.0


def potential(theta: Vector) -> Vector:
    """Two wells, at -2.9 and 2.3."""
    return (theta + 4) * (theta + 1) * (theta - 1) * (theta - 3) / 14 + 0.5


def noisy_slope(theta: Tensor, source: Noise) -> Tensor:
    """dU/dtheta + N(0, 2 B / h)."""
    slope = (4 * theta**3 + 3 * theta**2 - 26 * theta - 1) / 14
    return slope + source.normal(theta, math.sqrt(2 * B / STEP))


def well_bins(temperature: float = 1.0) -> Bins:
    """Of exp(-U / temperature)."""

    def mass(low: float, high: float) -> float:
        at = integrate.quad(lambda x: math.exp(-potential(x) / temperature), low, high)
        return float(at[0])

    edges = np.linspace(-6.0, 6.0, 61)
    masses = np.array([mass(*pair) for pair in pairwise(edges)])
    total = masses.sum() + mass(-12.0, edges[0]) + mass(edges[-1], 12.0)
    return Bins(edges, masses / total / np.diff(edges))


def well_draws(n: int, source: Noise) -> Tensor:
    """(n, 1) from exp(-U), by the inverse of its distribution function."""
    bins = well_bins()
    levels = np.concatenate(([0.0], np.cumsum(bins.exact * np.diff(bins.edges))))
    uniform = source.uniform(torch.empty(n, 1, dtype=torch.float64))
    return torch.from_numpy(np.interp(uniform.numpy(), levels, bins.edges))


def crossings(theta: Vector) -> float:
    """How often a chain of (draws, n) goes from one well to the other, on average."""
    side = np.where(np.abs(theta) > 1.5, np.sign(theta), 0.0)  # a turn on the top does not count
    return float(np.mean([np.count_nonzero(np.diff(one[one != 0])) for one in side.T]))


def double_well(quick: bool, seed: int) -> Result:
    """SGNHT against three fixed frictions, driven by the noise of the gradient alone.

    Chains start from the target, which a wrong sampler leaves: where the temperature is right, a
    well is left about once in a time of 200.
    """
    chains, end, burn_in = (200, 60.0, 20.0) if quick else (500, 600.0, 100.0)
    frictions = (0.1, 1.0, 10.0)
    samplers: dict[str, SGHMC | SGNHT] = {
        # B = 2 C / h leaves h (2 C - h B) = 0 to inject
        **{f"friction {c:g}": SGHMC(c, noise_estimate=2 * c / STEP) for c in frictions},
        "SGNHT": SGNHT(0.0, per="row"),
    }
    bins = well_bins()
    columns = "method kinetic ± xi xi_sd rmse rmse_noise rmse_at_B/xi crossings_a_chain"
    table = _table(columns)
    kinetic, xi, fit, crossed, densities, warmth = {}, {}, {}, {}, {}, {}
    for stream, (name, sampler) in enumerate(samplers.items()):
        run = chains_of(
            sampler,
            partial(noisy_slope, source=noise(seed, stream, 1)),
            well_draws(chains, noise(seed, stream, 2)),
            STEP,
            round(end / STEP),
            noise(seed, stream),
            every=10,
        )
        late = run.after(burn_in)
        theta = late.theta[..., 0]
        density = bins.densities(theta)
        densities[name], warmth[name] = density.mean(axis=0), running_mean(run.kinetic[..., 0])
        kinetic[name], xi[name] = estimate(late.kinetic), estimate(late.xi)
        fit[name] = misfit([density], [bins.exact])
        crossed[name] = crossings(theta)
        tempered = misfit([density], [well_bins(B / xi[name].mean).exact])
        measured = (*kinetic[name], xi[name].mean, float(late.xi.std()), *fit[name][:2])
        _add(table, (name, *measured, tempered.rmse, crossed[name]))
    # the last was SGNHT
    times, path, spread, pace = run.time, run.xi[:, 0], float(late.xi.std()), running_mean(run.xi)

    cold, hot, right = "friction 10", "friction 0.1", "friction 1"
    # with friction C: 2 C E[p^2] (1 - C h / 2) = 2 B
    expected = 0.5 * B / (1 - STEP / 2)
    peak = float(bins.exact.max())

    def accurate(name: str) -> bool:
        """Beyond doubt no worse than a fiftieth of the peak."""
        return fit[name].square <= (0.02 * peak) ** 2 + ERRORS * fit[name].error

    def sampled(name: str) -> str:
        of = fit[name]
        return f"kinetic energy {kinetic[name]}, density RMSE {of} (Monte Carlo {of.noise:.3f})"

    claims = [
        Claim(
            "with friction 1 = B the kinetic energy is 1/2 and the density right",
            sampled(right),
            kinetic[right].near(expected) and accurate(right),
        ),
        Claim(
            "SGNHT does as well without knowing B",
            sampled("SGNHT"),
            kinetic["SGNHT"].near(0.5) and accurate("SGNHT"),
        ),
        Claim(
            "SGNHT's xi finds B = 1",
            f"its mean is {xi['SGNHT']}; it keeps moving about it with standard deviation "
            f"{spread:.3f}, as its law N(B, 1/n) with n = 1 says",
            xi["SGNHT"].near(B, slack=B * STEP),
        ),
        Claim(
            "friction 10 is too cold and stays in one well",
            f"{sampled(cold)}; {crossed[cold]:.2g} crossings a chain against "
            f"{crossed[right]:.2g} with friction 1",
            kinetic[cold].mean < 0.1 and crossed[cold] == 0 and fit["SGNHT"].below(fit[cold]),
        ),
        Claim(
            "friction 0.1 is too hot and wanders",
            f"{sampled(hot)}; {crossed[hot]:.2g} crossings a chain",
            kinetic[hot].mean > 2.5 and fit["SGNHT"].below(fit[hot]),
        ),
    ]

    def draw(figure: Figure) -> None:
        panels = figure.subplot_mosaic([["density", "kinetic"], ["density", "xi"]])
        axes, above, below = panels["density"], panels["kinetic"], panels["xi"]
        for name, density in densities.items():
            axes.plot(bins.centres, density, marker=".", ms=4, lw=1, label=name)
        axes.stairs(bins.exact, bins.edges, color="black", lw=1.5, label="exact")
        axes.set(xlabel="θ", ylabel="density", ylim=(0, None))
        axes.set_title("SGNHT and friction 1 = B sample the double well", fontsize=10)
        axes.legend(fontsize=8, loc="upper right")
        for name, mean in warmth.items():
            above.plot(times, mean, label=name)
        above.axhline(0.5, color="black", ls="--", lw=1)
        above.set(xscale="log", yscale="log", xlabel="time t h", ylabel="mean of p²/2 so far")
        above.set_title("SGNHT keeps the kinetic energy at 1/2 ...", fontsize=10)
        below.plot(times, path, lw=0.5, color="C3", label="one chain")
        below.plot(times, pace, color="C4", label="mean so far, all chains")
        below.axhline(B, color="black", ls="--", lw=1, label="B")
        below.set(xlabel="time t h", ylabel="ξ of SGNHT")
        below.set_title("... by a friction ξ with mean B and variance 1", fontsize=10)
        below.legend(fontsize=8)

    return Result(table, claims, draw)


# -- figures 2, 5 and 6, table 1 --------------------------------------------------------------


class Data(NamedTuple):
    """N numbers with mean 0 and variance 1."""

    x: Vector

    @staticmethod
    def draw(seed: int) -> Data:
        """From N(0, 1), standardised."""
        x = np.random.default_rng((seed, N)).standard_normal(N)
        return Data((x - x.mean()) / x.std(ddof=1))

    def sums(self, rows: int, source: torch.Generator) -> Iterator[Tensor]:
        """For ever: (rows, 2), N / minibatch times the sums of x and x^2 over fresh minibatches.

        Each row draws its own minibatch without replacement.
        """
        values = torch.from_numpy(np.stack((self.x, self.x**2), axis=1)) * (N / MINIBATCH)
        steps = 1 + 8192 // rows  # at a time: quicker than one by one
        while True:
            yield from subset_sums(values, MINIBATCH, steps * rows, source).view(steps, rows, 2)

    @property
    def noise_variance(self) -> float:
        """Of N / minibatch times the sum of x over a minibatch."""
        return float(N * (N - MINIBATCH) / MINIBATCH * self.x.var(ddof=1))


def _by_minibatches(
    slope: Callable[[Tensor, Tensor], Tensor], sums: Iterator[Tensor]
) -> Callable[[Tensor], Tensor]:
    return lambda theta: slope(theta, next(sums))


def runs(
    slope: Callable[[Tensor, Tensor], Tensor],
    data: Data,
    start: Sequence[float],
    quick: bool,
    seed: int,
    stream: int,
) -> Iterator[tuple[Key, Trace, Trace]]:
    """Both methods over the settings, with and without burn-in.

    ``slope`` takes theta and `Data.sums`. xi moves from A to where it belongs in a time of about
    xi, 15 at most.
    """
    settings = SETTINGS[:2] if quick else SETTINGS
    for at, (method, (h, a)) in enumerate(product(("SGHMC", "SGNHT"), settings)):
        chains = 100 if quick else 200 if h == 0.01 else 800
        end, burn_in = (80.0, 50.0) if quick else (300.0, 100.0) if h == 0.01 else (100.0, 30.0)
        sums = data.sums(chains, noise(seed, stream, at, 1).source)
        run = chains_of(
            SGNHT(a, per="row") if method == "SGNHT" else SGHMC(a),
            _by_minibatches(slope, sums),
            torch.tensor(start, dtype=torch.float64).repeat(chains, 1),
            h,
            round(end / h),
            noise(seed, stream, at),
            every=round(0.01 / h),
        )
        yield (method, h, a), run, run.after(burn_in)


def momentum_square(friction: float, forcing: float, curvature: float, step_size: float) -> float:
    """E[p^2] of an Euler chain whose momentum noise has the variance h times ``forcing``.

    From p' = (1 - C h) p - h a theta + noise, theta' = theta + h p', with nothing left out.
    """
    h, c = step_size, friction
    return forcing / (2 * c - c * c * h - c * h * h * curvature / 2)


def settled(forcing: float, curvature: float, step_size: float) -> float:
    """Where xi goes: the friction that makes `momentum_square` 1.

    With 1 for the variance of xi, as E[p^2 xi^2] enters.
    """
    h, b = step_size, 1 - step_size**2 * curvature / 4
    return (b - math.sqrt(b * b - (forcing + h) * h)) / h


def mean_slope(theta: Tensor, sums: Tensor) -> Tensor:
    """dU/dmu (Ding et al. 2014, appendix E)."""
    return N * theta - sums[:, :1]


def gaussian_mean(quick: bool, seed: int) -> Result:
    """The mean of N(mu, 1) from minibatches: what becomes of their noise."""
    data = Data.draw(seed)
    posterior = stats.norm(data.x.mean(), N**-0.5)
    bins, variance = Bins.of(posterior), data.noise_variance
    table = _table("method h A kinetic ± kinetic_exact xi xi_exact sd_ratio rmse rmse_noise")
    kinetic, xi, fit, ratio, exact = {}, {}, {}, {}, {}
    densities, warmth, pace = {}, {}, {}
    for key, run, late in runs(mean_slope, data, [float(posterior.mean())], quick, seed, 10):
        method, h, a = key
        density = bins.densities(late.theta[..., 0])
        densities[key] = density.mean(axis=0)
        warmth[key] = run.time / h, running_mean(run.kinetic[..., 0])
        pace[key] = run.time / h, running_mean(run.xi)
        kinetic[key], xi[key] = estimate(late.kinetic), estimate(late.xi)
        fit[key] = misfit([density], [bins.exact])
        ratio[key] = float(late.theta.std() / posterior.std())
        forcing = 2 * a + h * variance
        hot = method == "SGHMC"
        exact[key] = (
            (0.5 * momentum_square(a, forcing, N, h), a) if hot else (0.5, settled(forcing, N, h))
        )
        measured = (*kinetic[key], exact[key][0], xi[key].mean, exact[key][1], ratio[key])
        _add(table, (*key, *measured, *fit[key][:2]))

    ours, theirs = ([key for key in fit if key[0] == method] for method in ("SGNHT", "SGHMC"))
    claims = [
        Claim(
            "SGNHT keeps the kinetic energy at 1/2 whatever h and A",
            _list({key: str(kinetic[key]) for key in ours}),
            all(kinetic[key].near(0.5, slack=0.0025) for key in ours),
        ),
        Claim(
            "SGHMC does so only where h is small and A large",
            _list({key: f"{kinetic[key]}, exactly {exact[key][0]:.3f}" for key in theirs}),
            all(kinetic[key].near(exact[key][0]) for key in theirs)
            and all((kinetic[k].mean < 0.55) == (k[1:] == (0.001, 10.0)) for k in theirs),
        ),
        Claim(
            "SGNHT's density of mu is nearer than SGHMC's at the same h and A",
            "RMSE " + _list({k: f"{fit[k]} against {fit['SGHMC', *k[1:]]}" for k in ours}),
            all(fit[key].below(fit["SGHMC", *key[1:]]) for key in ours),
        ),
        Claim(
            "SGNHT samples accurately whatever h and A",
            "standard deviation of mu over the posterior's "
            + _list({key: f"{ratio[key]:.3f}" for key in ours})
            + "; the largest gap is the step's own, (1 - xi h / 2)^(1/2)",
            all(abs(ratio[key] - 1) < 0.05 for key in ours),
        ),
        Claim(
            "xi takes up the gradient's noise: above A by h V / 2, ten times more at the larger h",
            _list({key: f"{xi[key]}, expected {exact[key][1]:.2f}" for key in ours}),
            all(xi[key].near(exact[key][1], slack=0.01 * exact[key][1]) for key in ours),
        ),
    ]

    def draw(figure: Figure) -> None:
        grid = figure.subplots(2, 2)
        for axes, keys in zip(grid[0], (theirs, ours), strict=True):
            for key in keys:
                axes.plot(bins.centres, densities[key], lw=1.2, **_style(key))
            axes.plot(bins.centres, bins.exact, color="black", lw=1.2, ls=":", label="exact")
            axes.set(xlabel="μ", ylabel="density")
        grid[0, 0].set_title("SGHMC (dashed): too wide unless h small, A large", fontsize=10)
        grid[0, 1].set_title("SGNHT: right everywhere", fontsize=10)
        for key, (steps, mean) in warmth.items():
            grid[1, 0].plot(steps, mean, lw=1.2, **_style(key))
        for key in ours:
            grid[1, 1].plot(*pace[key], lw=1.2, **_style(key))
            grid[1, 1].axhline(exact[key][1], color="black", lw=0.8, ls=":")
        grid[1, 0].axhline(0.5, color="black", lw=0.8, ls=":")
        grid[1, 0].set(xscale="log", yscale="log", xlabel="step t", ylabel="mean of p²/2 so far")
        ticks = (0.3, 0.5, 1, 2, 3)
        grid[1, 0].set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        grid[1, 0].set_yticks([], minor=True)
        grid[1, 0].set_title("Kinetic energy: 1/2 is right", fontsize=10)
        grid[1, 1].set(xscale="log", xlabel="step t", ylabel="mean ξ so far")
        grid[1, 1].set_title("The thermostat takes up the noise (dotted: expected)", fontsize=10)
        grid[0, 1].legend(fontsize=7)

    return Result(table, claims, draw)


# (RMSE, autocorrelation time) of table 1
PAPER = {
    ("SGHMC", 0.01, 1.0): (0.629, 7.19),
    ("SGHMC", 0.01, 10.0): (0.286, 37.68),
    ("SGHMC", 0.001, 1.0): (0.292, 67.83),
    ("SGHMC", 0.001, 10.0): (0.136, 357.14),
    ("SGNHT", 0.01, 1.0): (0.175, 14.35),
    ("SGNHT", 0.01, 10.0): (0.026, 55.65),
    ("SGNHT", 0.001, 1.0): (0.091, 22.97),
    ("SGNHT", 0.001, 10.0): (0.053, 424.81),
}


def normal_gamma_slope(theta: Tensor, sums: Tensor) -> Tensor:
    """dU/d(mu, gamma): appendix E's, but with half of its sum over (x - mu)^2."""
    mu, gamma = theta[:, :1], theta[:, 1:]
    x, squares = sums[:, :1], sums[:, 1:]
    residual = squares - 2 * mu * x + N * mu**2
    of_mu = gamma * ((N + 1) * mu - x)
    of_gamma = 1 + 0.5 * (mu**2 + residual) - 0.5 * (N + 1) / gamma
    return torch.cat((of_mu, of_gamma), dim=1)


def posteriors(x: Vector) -> tuple[stats.rv_continuous, stats.rv_continuous]:
    """Of mu, a Student's t, and of gamma, for mu ~ N(0, 1/gamma) and gamma ~ Gam(1, 1)."""
    n, mean = len(x), float(x.mean())
    alpha, beta = 1 + n / 2, 1 + 0.5 * np.sum((x - mean) ** 2) + n / (2 * (n + 1)) * mean**2
    of_mu = stats.t(2 * alpha, n / (n + 1) * mean, math.sqrt(beta / (alpha * (n + 1))))
    return of_mu, stats.gamma(alpha, scale=1 / beta)


def batch_time(series: Vector, batch: int) -> float:
    """The integrated autocorrelation time of (draws, n) by the variance of batches' means.

    Unlike a window on the autocorrelations it does not mind that these swing about zero.
    """
    centred = series - series.mean()
    whole = len(series) // batch * batch
    means = centred[:whole].reshape(-1, batch, series.shape[1]).mean(axis=1)
    return float(batch * np.mean(means**2) / np.mean(centred**2))


def normal_gamma(quick: bool, seed: int) -> Result:
    """Mean and precision of a normal law: the gradient's noise depends on theta.

    On theta itself, as in the paper: where it is hottest, gamma comes down to 0.1 and not to 0.
    """
    data = Data.draw(seed)
    laws = posteriors(data.x)
    bins = [Bins.of(law) for law in laws]
    columns = "rmse rmse_noise rmse_paper tau tau_window tau_paper kinetic_mu kinetic_gamma xi"
    table = _table(f"method h A {columns}")
    fit, tau, warm, densities = {}, {}, {}, {}
    start = [float(law.mean()) for law in laws]
    for key, _, late in runs(normal_gamma_slope, data, start, quick, seed, 20):
        density = [one.densities(late.theta[..., k]) for k, one in enumerate(bins)]
        densities[key] = [one.mean(axis=0) for one in density]
        fit[key] = misfit(density, [one.exact for one in bins])
        total = late.theta.sum(axis=2)
        every = round(0.01 / key[1])
        tau[key] = every * batch_time(total, 1000)
        window = every * autocorrelation_time(total)
        warm[key] = late.kinetic.mean(axis=(0, 1))
        rmse, time = PAPER[key]
        times = tau[key], window, time, *map(float, warm[key]), float(late.xi.mean())
        _add(table, (*key, *fit[key][:2], rmse, *times))

    ours, theirs = ([key for key in fit if key[0] == method] for method in ("SGNHT", "SGHMC"))
    beaten = [
        key
        for key in theirs[1:]
        if any(tau[other] < 0.8 * tau[key] and fit[other].below(fit[key]) for other in ours)
    ]
    claims = [
        Claim(
            "SGNHT's densities are nearer than SGHMC's at the same h and A",
            "RMSE "
            + _list({k: f"{fit[k]} against {fit['SGHMC', *k[1:]]}" for k in ours})
            + "; what is left is mostly the one thermostat's, which evens out the kinetic "
            f"energies of mu and gamma only on average, {warm[ours[0]][0]:.3f} and "
            f"{warm[ours[0]][1]:.3f} at {_at(ours[0])}",
            all(fit[key].below(fit["SGHMC", *key[1:]]) for key in ours),
        ),
        Claim(
            "small h and large A are more accurate",
            _ranking({key: str(one) for key, one in fit.items()}),
            all(fit[better].below(fit[worse]) for better, worse in _neighbours(fit)),
        ),
        Claim(
            "large h and small A give lower autocorrelation times",
            _ranking({key: f"{one:.3g}" for key, one in tau.items()}),
            all(tau[faster] < 0.8 * tau[slower] for slower, faster in _neighbours(tau)),
        ),
        Claim(
            "at similar accuracy SGNHT has a much lower autocorrelation time: to each setting of "
            "SGHMC but the fastest, one of SGNHT is more accurate and faster by a fifth",
            f"so for {', '.join(map(_at, beaten)) or 'none'} of "
            f"{', '.join(map(_at, theirs[1:]))}. The time is near 2 xi / (h U''), and xi is above "
            "A: SGNHT gains where its thermostat allows a larger h or a smaller A, not where "
            "SGHMC is accurate already",
            beaten == theirs[1:],
        ),
        Claim(
            "the times are those of table 1, within a factor of 2",
            _ranking({key: f"{one:.3g} ({PAPER[key][1]:g})" for key, one in tau.items()})
            + ". SGNHT's 22.97 at h = 0.001, A = 1 is not to be had: xi is above A = 1, so it "
            "cannot be three times as fast as SGHMC with friction 1",
            all(0.5 < one / PAPER[key][1] < 2.0 for key, one in tau.items()),
        ),
    ]

    def draw(figure: Figure) -> None:
        rows = [[f"{name} {method}" for method in ("SGHMC", "SGNHT")] for name in "μγ"]
        panels = figure.subplot_mosaic(
            [[*row, "trade"] for row in rows], width_ratios=(1.0, 1.0, 1.5)
        )
        for k, (name, one) in enumerate(zip("μγ", bins, strict=True)):
            for method, keys in (("SGHMC", theirs), ("SGNHT", ours)):
                axes = panels[f"{name} {method}"]
                for key in keys:
                    axes.plot(one.centres, densities[key][k], lw=1.2, **_style(key))
                axes.plot(one.centres, one.exact, color="black", lw=1.2, ls=":", label="exact")
                axes.set(xlabel=name, ylabel="density", ylim=(0, 1.3 * one.exact.max()))
                axes.set_title(f"{method}, {name}", fontsize=10)
        axes = panels["trade"]
        for key, of in fit.items():
            marker, colour = "^o"[key[0] == "SGNHT"], _style(key)["color"]
            axes.plot(tau[key], of.rmse, marker, color=colour, ms=8)
            axes.plot(*PAPER[key][::-1], marker, color=colour, ms=8, mfc="none")
        for marker, method in zip("^o", ("SGHMC", "SGNHT"), strict=True):
            axes.plot([], [], marker, color="black", label=method)
            axes.plot([], [], marker, color="black", mfc="none", label=f"{method}, the paper's")
        axes.set(xscale="log", yscale="log", xlabel="autocorrelation time of μ + γ, steps")
        axes.set(ylabel="RMSE of the density")
        axes.set_title(
            "SGNHT (circles) is the more accurate\nat the same h, A (colour)", fontsize=10
        )
        for key in ours:
            axes.plot([], [], "s", color=_style(key)["color"], label=_at(key))
        axes.plot([], [], ":", color="black", label="exact density")
        axes.legend(fontsize=7, loc="lower left")

    return Result(table, claims, draw)


EXPERIMENTS = (
    Experiment(
        "double-well",
        "Ding et al. 2014, figures 1 and 4",
        "Unknown noise in the gradient heats or freezes a fixed friction, not a thermostat",
        double_well,
    ),
    Experiment(
        "gaussian-mean",
        "Ding et al. 2014, section 5.1 and figures 2 and 5",
        "A thermostat takes up the noise of minibatches that SGHMC leaves in the posterior",
        gaussian_mean,
    ),
    Experiment(
        "normal-gamma",
        "Ding et al. 2014, section 5.1, figure 6 and table 1",
        "Accuracy against autocorrelation time where the noise depends on theta",
        normal_gamma,
    ),
)
