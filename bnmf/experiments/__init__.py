"""The papers' experiments as commands: each makes a table, a figure and verdicts on its claims."""

from __future__ import annotations

from bnmf.experiments import monomial
from bnmf.experiments.base import Experiment

EXPERIMENTS: dict[str, Experiment] = {}
EXPERIMENTS |= {one.name: one for one in monomial.MONOMIAL}
