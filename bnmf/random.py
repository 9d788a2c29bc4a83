"""Random numbers keyed by what they are for, never by who draws them.

A key names the use: (seed, chain, sweep, stratum, block, role, local step). The same key gives
the same numbers in any thread, process or worker, which is what makes a run independent of how
its work is dealt out, and a resumed run equal to an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import struct
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor


class Role(IntEnum):
    """What a stream of random numbers is for."""

    START = 0
    STRATA = 1
    MINIBATCH = 2
    ROW_NOISE = 3
    COL_NOISE = 4
    RESAMPLE = 5
    HYPER = 6
    WATCH = 7
    IMPLICIT = 8
    CELLS = 9


class Key(NamedTuple):
    """The name of one visit of one block; roles and local steps are added when drawing.

    ``block`` is the row block of the visit; with ``stratum`` it fixes the column block.
    """

    seed: int
    chain: int = 0
    sweep: int = 0
    stratum: int = 0
    block: int = 0


def generator(
    key: Key, role: Role, step: int = 0, device: torch.device | str = "cpu"
) -> torch.Generator:
    """A generator for one use.

    torch's CPU engine (MT19937) keeps 32 bits of its seed, so among n streams about n^2 / 2^33
    pairs share their numbers, in unrelated blocks and sweeps. A sweep takes one stream for its
    strata, and 2 for each of its G^2 visits and their local steps, 3 with minibatches. Of 800
    sweeps with one step a visit: 0.08 pairs a run for G = 4 (n = 26,400), 1.2 for G = 8
    (n = 103,200). CUDA's engine (Philox) keeps 64 bits.
    """
    digest = hashlib.blake2b(struct.pack("<7q", *key, role, step), digest_size=8).digest()
    fresh = torch.Generator(device=device)
    fresh.manual_seed(int.from_bytes(digest, "little") >> 1)
    return fresh


class Noise:
    """Random numbers of one generator, in the shape and type of a tensor."""

    def __init__(self, source: torch.Generator) -> None:
        self.source = source

    def normal(self, like: Tensor, std: float = 1.0) -> Tensor:
        """From N(0, std^2); the caller owns the result."""
        return torch.empty_like(like).normal_(0.0, std, generator=self.source)

    def uniform(self, like: Tensor) -> Tensor:
        """From [0, 1)."""
        return torch.empty_like(like).uniform_(generator=self.source)

    def exponential(self, like: Tensor) -> Tensor:
        """From the unit Exponential."""
        return torch.empty_like(like).exponential_(generator=self.source)
