"""The papers' experiments as commands: each makes a table, a figure and verdicts on its claims."""

from __future__ import annotations

from bnmf.experiments.base import Experiment
from bnmf.experiments.bounded import BOUNDED

EXPERIMENTS: dict[str, Experiment] = {e.name: e for e in BOUNDED}
