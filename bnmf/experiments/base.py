"""What an experiment is, and chains of a sampler on any potential."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnmf.domains import Domain
from bnmf.random import Noise
from bnmf.samplers import Sampler, State

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Vector = NDArray[np.float64]


class Claim(NamedTuple):
    """One claim of a paper, beside what was found."""

    says: str
    found: str  # with the figures it rests on
    holds: bool


class Result(NamedTuple):
    """What an experiment found."""

    table: Mapping[str, Sequence[str | int | float]]  # columns of equal length
    claims: Sequence[Claim]
    draw: Callable[[Figure], None]  # the picture, on an empty figure


@dataclass(frozen=True)
class Experiment:
    """One experiment of a paper."""

    name: str
    source: str  # paper and figure or table
    shows: str  # in one sentence
    run: Callable[[bool, int], Result]  # (quick, seed)


def noise(seed: int, *stream: int) -> Noise:
    """A source of its own for each stream of an experiment."""
    # with its length, as zeros at the end of an entropy do not count
    words = np.random.SeedSequence((seed, len(stream), *stream)).generate_state(1, np.uint64)
    source = torch.Generator()
    source.manual_seed(int(words[0]) >> 1)
    return Noise(source)


def chain(
    sampler: Sampler,
    domain: Domain,
    gradient: Callable[[Tensor], Tensor],
    theta: Tensor,
    step_size: float,
    steps: int,
    noise: Noise,
    temperature: float = 1.0,
    resample_every: int | None = None,
) -> Iterator[tuple[Tensor, State]]:
    """Chains side by side, one a row: theta (n, d) and the sampler's state after each step.

    Args:
        sampler: any of the family.
        domain: the space that theta is sampled in.
        gradient: (n, d) -> (n, d), an unbiased estimate of dU/dtheta; noise in it is its own.
        theta: (n, d), where the chains start.
        step_size: eps or h.
        steps: how many.
        noise: of the sampler.
        temperature: tau.
        resample_every: steps between fresh draws of the momenta; None for never.
    """
    scale = theta.new_ones(1, 1)
    state = sampler.init(domain.position(theta), temperature, noise)
    for t in range(steps):
        if resample_every and t and t % resample_every == 0:
            state = sampler.resample(state, temperature, noise)
        state = sampler.before_gradient(state, step_size, scale, temperature)
        domain.confine(state.position, state.momentum)
        of_theta = gradient(domain.factor(state.position))
        of_position = domain.gradient(state.position, of_theta, temperature)
        state = sampler.step(state, of_position, step_size, scale, temperature, noise)
        domain.confine(state.position, state.momentum)
        yield domain.factor(state.position), state


@contextmanager
def one_thread() -> Iterator[None]:
    """Tensors of some hundred numbers: more threads of torch only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def autocorrelation_time(series: Vector) -> float:
    """The integrated autocorrelation time 1 + 2 sum_t rho_t in steps, averaged over chains.

    ``series`` (steps, n). The sum ends at the first t that is beyond 5 times the sum so far
    (Sokal's window).
    """
    steps = len(series)
    centred = series - series.mean()
    size = 2 ** (2 * steps - 1).bit_length()
    power = np.abs(np.fft.rfft(centred, size, axis=0)) ** 2
    covariance = np.fft.irfft(power, size, axis=0)[:steps].mean(axis=1)
    rho = covariance / covariance[0]
    times = 2.0 * np.cumsum(rho) - 1.0
    window = np.arange(steps) >= 5.0 * times
    return float(times[np.argmax(window)] if window.any() else times[-1])
