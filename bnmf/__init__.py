"""Bayesian non-negative matrix factorization of ratings, by stochastic-gradient MCMC.

run = bnmf.train("ml-1m", rank=20)
posterior = bnmf.Posterior.load(run.path)
mean, std = posterior.score(users, items)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Posterior", "train"]

if TYPE_CHECKING:
    from bnmf.api import train
    from bnmf.posterior import Posterior


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that `import bnmf` pulls in neither pyarrow nor ray.
    if name == "train":
        from bnmf.api import train

        return train
    if name == "Posterior":
        from bnmf.posterior import Posterior

        return Posterior
    raise AttributeError(f"module 'bnmf' has no attribute {name!r}")
