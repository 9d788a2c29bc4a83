"""The papers' experiments as commands: each makes a table, a figure and verdicts on its claims."""

from __future__ import annotations

from bnmf.experiments import bounded, monomial, ratings, recipes, regression, thermostats
from bnmf.experiments.base import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    one.name: one
    for room in (bounded, thermostats, monomial, recipes, regression, ratings)
    for one in room.EXPERIMENTS
}
