"""SGD and SGLD on Bayesian linear regression (Karagiannis, handout on SGLD, section 4).

y_i ~ N(x_i.beta, e^gamma), beta ~ N(mu, e^gamma V), e^gamma ~ IG(phi, psi); theta is
(beta, gamma). With gamma = log sigma^2 the prior's terms are (-phi - 1) gamma + gamma = -phi gamma,
so that d log f / d gamma = -d/2 + e^-gamma (beta - mu).V^-1 (beta - mu) / 2 - phi + psi e^-gamma.
Eq. 4.2 has + d/2; its + 1 is the Jacobian's. (The lines above it also have |V| for log |V| and
psi log phi for phi log psi, which are constants.)

What to expect near the mode, where U is a quadratic of curvature A and the minibatch gradient
has the covariance C / m: a step eps leaves the covariance S with
A S + S A - eps A S A = 2 tau + eps C / m. For a small eps and C / m near (n / m) A its variance
is (tau + eps (n / m) a / 2) / (a (1 - eps a / 2)) in each direction: it grows linearly with tau,
from a part that minibatches add and that is the larger the smaller they are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from scipy import linalg, stats
from torch import Tensor

from bnmf.domains import CoRV
from bnmf.experiments.base import Claim, Experiment, Result, Vector, chain, noise
from bnmf.random import Noise
from bnmf.samplers.sgld import SGLD
from bnmf.transforms import Identity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BETA, VARIANCE = (0.5, -1.0), 0.5  # what the data are made from: ours
INSTANCES = 1_000
PHI, PSI, PRIOR_VARIANCE = 1.0, 1.0, 100.0  # mu = 0, V = 100 I
NAMES = ("β₁", "β₂", "log σ²")


class Posterior(NamedTuple):
    """Data, and the exact posterior: e^gamma from IG(shape, rate), beta | gamma normal."""

    x: Tensor  # (n, d)
    y: Tensor  # (n,)
    mean: Vector  # (d,), of beta
    spread: Vector  # (d, d): beta | gamma has the covariance e^gamma times it
    shape: float
    rate: float

    @staticmethod
    def make(seed: int) -> Posterior:
        """An intercept and one covariate."""
        rng = np.random.default_rng((seed, 3))
        x = np.stack([np.ones(INSTANCES), rng.standard_normal(INSTANCES)], 1)
        y = x @ np.array(BETA) + math.sqrt(VARIANCE) * rng.standard_normal(INSTANCES)
        spread: Vector = linalg.inv(x.T @ x + np.eye(2) / PRIOR_VARIANCE)
        mean = spread @ (x.T @ y)
        rest = float(y @ y - mean @ (x.T @ y))
        return Posterior(
            torch.from_numpy(x),
            torch.from_numpy(y),
            mean,
            spread,
            PHI + INSTANCES / 2,
            PSI + rest / 2,
        )

    def marginals(self) -> tuple[Callable[[Vector], Vector], ...]:
        """The exact densities of beta_1, beta_2 and gamma."""
        scales = np.sqrt(np.diag(self.spread) * self.rate / self.shape)
        of_beta = [
            stats.t(2.0 * self.shape, mean, scale).pdf
            for mean, scale in zip(self.mean, scales, strict=True)
        ]
        variance = stats.invgamma(self.shape, scale=self.rate)
        return (*of_beta, lambda gamma: variance.pdf(np.exp(gamma)) * np.exp(gamma))

    def quantiles(self, probabilities: Vector) -> tuple[Vector, ...]:
        """Those of beta_1, beta_2 and gamma."""
        scales = np.sqrt(np.diag(self.spread) * self.rate / self.shape)
        of_beta = [
            stats.t(2.0 * self.shape, mean, scale).ppf(probabilities)
            for mean, scale in zip(self.mean, scales, strict=True)
        ]
        return (*of_beta, np.log(stats.invgamma(self.shape, scale=self.rate).ppf(probabilities)))

    def deviations(self) -> Vector:
        """Of beta_1, beta_2 and gamma."""
        inflated = self.rate / (self.shape - 1.0)  # E sigma^2
        trigamma = stats.loggamma(self.shape).var()  # of the log of a gamma variable
        variances: Vector = np.append(np.diag(self.spread) * inflated, trigamma)
        return np.sqrt(variances)

    def mode(self) -> Vector:
        """The MAP of (beta, gamma): d U / d gamma = 0 at rate e^-gamma = shape + d/2."""
        return np.append(self.mean, math.log(self.rate / (self.shape + 0.5 * len(self.mean))))

    def mle(self) -> Vector:
        """Least squares and the mean square of its residuals."""
        x, y = self.x.numpy(), self.y.numpy()
        beta = np.linalg.lstsq(x, y, rcond=None)[0]
        return np.append(beta, math.log(float(np.mean((y - x @ beta) ** 2))))

    def negative_log(self, theta: Tensor) -> Tensor:
        """U of theta (d + 1,) up to a constant, as the model is written: for tests' autograd."""
        beta, gamma = theta[:-1], theta[-1]
        n, d = self.x.shape
        residual = self.y - self.x @ beta
        likelihood = n / 2 * gamma + 0.5 * torch.exp(-gamma) * residual @ residual
        prior = d / 2 * gamma + 0.5 * torch.exp(-gamma) * beta @ beta / PRIOR_VARIANCE
        return likelihood + prior + (PHI + 1.0) * gamma + PSI * torch.exp(-gamma) - gamma

    def gradient(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """An estimate of dU of theta (k, d + 1) from x (k, m, d) and y (k, m), or (1, n, d)."""
        beta, gamma = theta[:, :-1], theta[:, -1:]
        n, m, d = len(self.y), y.shape[1], x.shape[2]
        inverse = torch.exp(-gamma)
        residual = y - torch.einsum("kmd,kd->km", x.expand(len(theta), -1, -1), beta)
        pulled = torch.einsum("kmd,km->kd", x.expand(len(theta), -1, -1), residual)
        square = residual.square().sum(1, keepdim=True)
        of_beta = inverse * (beta / PRIOR_VARIANCE - n / m * pulled)
        of_prior = (
            0.5 * d
            + PHI
            - inverse * (PSI + 0.5 * beta.square().sum(1, keepdim=True) / PRIOR_VARIANCE)
        )
        return torch.cat([of_beta, of_prior + n / m * 0.5 * (m - inverse * square)], dim=1)

    def minibatches(self, m: int, source: Noise) -> Callable[[Tensor], Tensor]:
        """Gradients from m instances for each chain, drawn with replacement; m = n: all of them."""

        def of(theta: Tensor) -> Tensor:
            if m == len(self.y):
                return self.gradient(theta, self.x[None], self.y[None])
            uniform = source.uniform(theta.new_empty(len(theta), m))
            at = (uniform * len(self.y)).long()
            return self.gradient(theta, self.x[at], self.y[at])

        return of

    def curvature(self) -> tuple[Vector, Vector]:
        """A and C at the mode: the Hessian of U, and m times a minibatch gradient's covariance."""
        mode = torch.from_numpy(self.mode())
        hessian = torch.func.jacrev(torch.func.grad(self.negative_log))(mode)
        one = self.gradient(
            mode.expand(len(self.y), -1), self.x[:, None, :], self.y[:, None]
        ).numpy()
        return hessian.numpy(), np.cov(one.T, ddof=0)

    def expected(self, step_size: float, m: int, temperature: float) -> Vector:
        """The deviations of SGLD's stationary law, by the linear equation above."""
        a, c = self.curvature()
        noise_ = 2.0 * temperature * np.eye(len(a))
        if m < len(self.y):
            noise_ = noise_ + step_size / m * c
        # S = B S B + eps Q with B = 1 - eps A
        onward = np.eye(len(a)) - step_size * a
        found = linalg.solve_discrete_lyapunov(onward, step_size * noise_)
        return np.sqrt(np.diag(found))


class Run(NamedTuple):
    """SGLD at one setting."""

    m: int
    temperature: float
    ratios: Vector  # (3,), of the draws' deviations to the posterior's
    errors: Vector  # (3,), standard errors of the ratios
    expected: Vector  # (3,)
    mean: Vector  # (3,), of the draws
    distance: float  # total variation, the mean over the three marginals
    drawn: Vector  # (draws, 3)


CUTS = 20  # bins of equal probability
SKIP = 5  # steps between draws that are kept
STEP = 1e-4  # eps a is 0.2 for beta and 0.05 for gamma


def langevin(
    posterior: Posterior, m: int, temperature: float, chains: int, steps: int, seed: Sequence[int]
) -> Run:
    """Chains from the mode; a tenth of the steps is burn-in."""
    start = torch.from_numpy(posterior.mode()).repeat(chains, 1)
    run = chain(
        SGLD(),
        CoRV(Identity()),
        posterior.minibatches(m, noise(*seed, 0)),
        start,
        STEP,
        steps,
        noise(*seed, 1),
        temperature,
    )
    kept = np.stack(
        [
            theta.numpy().copy()
            for t, (theta, _) in enumerate(run)
            if t >= steps // 10 and t % SKIP == 0
        ]
    )
    each = ((kept - kept.mean((0, 1))) ** 2).mean(0)  # (chains, 3)
    deviation = np.sqrt(each.mean(0))
    error = each.std(0, ddof=1) / math.sqrt(chains) / (2.0 * deviation)
    drawn = kept.reshape(-1, 3)
    inner = np.linspace(0.0, 1.0, CUTS + 1)[1:-1]
    distances = [
        0.5 * np.abs(np.bincount(np.searchsorted(q, d), minlength=CUTS) / len(d) - 1 / CUTS).sum()
        for q, d in zip(posterior.quantiles(inner), drawn.T, strict=True)
    ]
    exact = posterior.deviations()
    return Run(
        m,
        temperature,
        deviation / exact,
        error / exact,
        posterior.expected(STEP, m, temperature) / exact,
        drawn.mean(0),
        float(np.mean(distances)),
        drawn,
    )


class Descent(NamedTuple):
    """SGD with one batch size: where it is in the end."""

    m: int
    path: Vector  # (steps, 3), one chain
    off: float  # root mean square of (theta - MAP) / posterior deviation over the last half
    average: float  # the largest |mean of theta - MAP| / posterior deviation, over the last half


def descend(posterior: Posterior, m: int, chains: int, steps: int, seed: Sequence[int]) -> Descent:
    """Temperature 0, from a place far off."""
    run = chain(
        SGLD(),
        CoRV(Identity()),
        posterior.minibatches(m, noise(*seed, 0)),
        torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64).repeat(chains, 1),
        STEP,
        steps,
        noise(*seed, 1),
        0.0,
    )
    path = np.stack([theta.numpy().copy() for theta, _ in run])
    off = (path[steps // 2 :] - posterior.mode()) / posterior.deviations()
    return Descent(
        m,
        path[:, 0],
        float(np.sqrt(np.mean(off**2))),
        float(np.abs(off.mean((0, 1))).max()),
    )


def regression(quick: bool, seed: int) -> Result:
    """Section 4."""
    posterior = Posterior.make(seed)
    chains, steps = (200, 500) if quick else (400, 3_000)
    sizes = (30, INSTANCES) if quick else (10, 30, 100, 300, INSTANCES)
    hot = (1.0, 4.0) if quick else (0.25, 1.0, 4.0, 16.0)
    settings = [(m, 1.0) for m in sizes]
    settings += [(m, t) for m in (100, INSTANCES) for t in hot if (m, t) not in settings]
    runs = [
        langevin(posterior, m, tau, chains, steps, (seed, m, round(100 * tau)))
        for m, tau in settings
    ]
    descents = [descend(posterior, m, 20, steps, (seed, m, 0)) for m in sizes]
    table: dict[str, Sequence[str | int | float]] = {
        "method": ["SGLD"] * len(runs) + ["SGD"] * len(descents),
        "batch size": [r.m for r in runs] + [d.m for d in descents],
        "temperature": [r.temperature for r in runs] + [0.0] * len(descents),
    }
    blank = [math.nan] * len(descents)
    for j, name in enumerate(NAMES):
        table[f"{name}: deviation / exact"] = [float(r.ratios[j]) for r in runs] + blank
        table[f"{name}: its error"] = [float(r.errors[j]) for r in runs] + blank
        table[f"{name}: derived"] = [float(r.expected[j]) for r in runs] + blank
    table["total variation"] = [r.distance for r in runs] + blank
    table["rms distance to the MAP / deviation"] = [math.nan] * len(runs) + [
        d.off for d in descents
    ]
    cold = [r for r in runs if r.temperature == 1.0 and r.m in sizes]
    whole, small = (
        sorted((r for r in runs if r.m == m), key=lambda r: r.temperature) for m in (INSTANCES, 100)
    )
    claims = [
        _descends(posterior, descents),
        _larger_batches(cold),
        _widens(small),
        _proportional(whole, "the whole data"),
        _proportional(small, "batches of 100"),
    ]
    return Result(table, claims, partial(_draw, posterior, cold, whole, descents))


def _descends(posterior: Posterior, descents: Sequence[Descent]) -> Claim:
    gap = np.abs(posterior.mode() - posterior.mle()) / posterior.deviations()
    walk = ", ".join(f"{d.off:.2g} (m = {d.m})" for d in descents)
    means = ", ".join(f"{d.average:.2g}" for d in descents)
    return Claim(
        "SGD goes to the MLE, and oscillates about it the more the smaller its batches",
        f"root mean square distance to the MAP in posterior deviations {walk}; of the iterates' "
        f"mean {means}, since at a constant step the walk of β adds to the residuals that log σ² "
        f"is fitted to; the MLE is {gap.max():.2g} deviations from the MAP",
        all(a.off > b.off for a, b in itertools.pairwise(descents))
        and all(d.average < max(0.5 * d.off, 1e-3) for d in descents)
        and bool(gap.max() < 0.5),
    )


def _larger_batches(cold: Sequence[Run]) -> Claim:
    gaps = ", ".join(f"{r.distance:.3f} (m = {r.m})" for r in cold)
    wide = ", ".join(f"{r.ratios.mean():.2f}" for r in cold)
    derived = ", ".join(f"{r.expected.mean():.2f}" for r in cold)
    return Claim(
        "SGLD is nearer to the exact posterior the larger the batches",
        f"total variation {gaps}; deviation / exact {wide}, derived {derived}",
        all(a.distance > b.distance for a, b in itertools.pairwise(cold)),
    )


def _widens(runs: Sequence[Run]) -> Claim:
    gaps = [
        b.ratios - a.ratios > 3.0 * np.hypot(a.errors, b.errors)
        for a, b in itertools.pairwise(runs)
    ]
    found = ", ".join(f"{r.ratios.mean():.2f} (τ = {r.temperature:g})" for r in runs)
    return Claim(
        f"A higher temperature widens the distribution (batches of {runs[0].m})",
        f"deviation of the draws / exact posterior deviation {found}",
        all(bool(gap.all()) for gap in gaps),
    )


def _proportional(runs: Sequence[Run], of: str) -> Claim:
    """Log-log slopes of the variances against the temperature."""
    taus = np.array([r.temperature for r in runs])
    squares = np.array([r.ratios**2 for r in runs])
    errors = np.array([2.0 * r.ratios * r.errors for r in runs]) / squares
    x = np.log(taus) - np.log(taus).mean()
    slopes = x @ np.log(squares) / (x @ x)
    doubt = np.sqrt((x**2) @ errors**2) / (x @ x)
    derived = x @ np.log([r.expected**2 for r in runs]) / (x @ x)
    found = ", ".join(
        f"{slope:.3f} +- {error:.3f} for {name} (derived {exact:.3f})"
        for name, slope, error, exact in zip(NAMES, slopes, doubt, derived, strict=True)
    )
    holds = bool((np.abs(slopes - 1.0) < 0.05).all())
    return Claim(
        f"The variance is proportional to the temperature ({of})",
        f"log-log slope of the variance {found}"
        + ("" if holds else "; to what grows with the temperature, batches add what does not"),
        holds,
    )


def _draw(
    posterior: Posterior,
    cold: Sequence[Run],
    hot: Sequence[Run],
    descents: Sequence[Descent],
    figure: Figure,
) -> None:
    axes = figure.subplots(3, 3)
    colours = [f"C{i}" for i in range(len(cold))]
    deviations, mode = posterior.deviations(), posterior.mode()
    for j, (name, density) in enumerate(zip(NAMES, posterior.marginals(), strict=True)):
        above, middle, below = axes[:, j]
        for descent, colour in zip(descents, colours, strict=True):
            above.plot(descent.path[:200, j], color=colour, lw=0.8, label=f"m = {descent.m}")
        above.axhline(mode[j], color="black", lw=1.0, label="MAP")
        above.set_xlabel("steps of SGD")
        above.set_ylabel(name)
        at = mode[j] + deviations[j] * np.linspace(-6.0, 6.0, 121)
        for run, colour in zip(cold, colours, strict=True):
            middle.plot(
                *_outline(run, j, at), color=colour, label=f"m = {run.m}", drawstyle="steps-mid"
            )
        wide = mode[j] + deviations[j] * np.linspace(-10.0, 10.0, 121)
        for i, run in enumerate(hot):
            below.plot(
                *_outline(run, j, wide),
                color=f"C{5 + i}",
                label=f"τ = {run.temperature:g}",
                drawstyle="steps-mid",
            )
        for panel, points in ((middle, at), (below, wide)):
            panel.plot(points, density(points), color="black", lw=1.4, label="exact posterior")
            panel.set_xlabel(name)
        if j == 0:
            middle.set_ylabel("density, τ = 1")
            below.set_ylabel("density, all data")
    for row in axes:
        row[-1].legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.suptitle("SGD by batch size m; SGLD by batch size m; SGLD by temperature τ")


def _outline(run: Run, j: int, at: Vector) -> tuple[Vector, Vector]:
    heights, edges = np.histogram(run.drawn[:, j], at, density=True)
    return 0.5 * (edges[1:] + edges[:-1]), heights


EXPERIMENTS = (
    Experiment(
        "linear-regression",
        "Karagiannis, handout on SGLD, section 4",
        "SGD and SGLD on a linear regression by batch size and temperature, against the truth.",
        regression,
    ),
)
