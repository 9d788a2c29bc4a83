"""What the command line asks for is what runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bnmf.config import TrainConfig
from bnmf.domains import CoRV, Domain, Ito, Mirror
from bnmf.hierarchical import HierarchicalMF
from bnmf.likelihoods import Gaussian, Likelihood, Poisson
from bnmf.models import PoissonNMF
from bnmf.parts import domain_of, model_of, sampler_of
from bnmf.samplers import Sampler
from bnmf.samplers.kinetics import MonomialGamma
from bnmf.samplers.sghmc import SGHMC
from bnmf.samplers.sgld import SGLD
from bnmf.samplers.sgmgt import SGMGT
from bnmf.samplers.sgnht import SGNHT
from bnmf.samplers.sgrhmc import SGRHMC
from bnmf.samplers.sgrld import SGRLD
from bnmf.transforms import Exp, Icll, Identity, Scaled, Softplus, Transform


def resolved(**settings: Any) -> TrainConfig:
    return TrainConfig(data="demo", **settings).sized(1000, 50).resolved(3.5)


SOFTPLUS = CoRV(Softplus())


@pytest.mark.parametrize(
    ("settings", "sampler"),
    [
        ({}, SGNHT(0.5)),
        ({"friction": 0.2}, SGNHT(0.2)),
        ({"sampler": "sgld"}, SGLD()),
        ({"sampler": "sgrld"}, SGRLD(SOFTPLUS.metric)),
        ({"sampler": "sghmc"}, SGHMC(0.5, 0.0)),
        ({"sampler": "sghmc", "friction": 0.7, "noise_estimate": 0.3}, SGHMC(0.7, 0.3)),
        (
            {"sampler": "sgrhmc", "friction": 0.7, "noise_estimate": 0.3},
            SGRHMC(SOFTPLUS.metric, 0.7, 0.3),
        ),
        ({"sampler": "sgmgt"}, SGMGT(0.5, MonomialGamma(1), integrator="aboba")),
        (
            {"sampler": "sgmgt", "monomial": 2, "integrator": "euler", "friction": 0.9},
            SGMGT(0.9, MonomialGamma(2), integrator="euler"),
        ),
        ({"sampler": "sgmgt-d"}, SGMGT(0.5, MonomialGamma(1), 0.1, 0.1)),
        ({"sampler": "sgmgt-d", "diffusion": 0.3}, SGMGT(0.5, MonomialGamma(1), 0.3, 0.3)),
    ],
)
def test_samplers(settings: dict[str, Any], sampler: Sampler) -> None:
    config = resolved(prior="exponential", **settings)
    made = sampler_of(config, domain_of(config))
    if isinstance(made, SGRLD | SGRHMC) and isinstance(sampler, SGRLD | SGRHMC):
        assert made.metric.__self__ == SOFTPLUS  # type: ignore[attr-defined]
        made = replace(made, metric=sampler.metric)  # methods are compared by identity
    assert made == sampler


@pytest.mark.parametrize(
    ("settings", "domain"),
    [
        ({}, CoRV(Identity())),
        ({"prior": "exponential"}, CoRV(Softplus())),
        ({"prior": "exponential", "transform": "exp"}, CoRV(Exp())),
        ({"prior": "exponential", "transform": "icll"}, CoRV(Icll())),
        ({"prior": "exponential", "domain": "mirror"}, Mirror()),
        (
            {"prior": "exponential", "domain": "ito", "sampler": "sgld", "transform": "exp"},
            Ito(Exp()),
        ),
        ({"model": "gaussian-mf"}, CoRV(Identity())),
    ],
)
def test_domains(settings: dict[str, Any], domain: Domain) -> None:
    assert domain_of(resolved(**settings)) == domain


def test_ito_runs_langevin_dynamics_with_its_metric() -> None:
    config = resolved(prior="exponential", domain="ito", sampler="sgld")
    made = sampler_of(config, domain_of(config))
    assert isinstance(made, SGRLD) and made.metric.__func__ is Ito.metric  # type: ignore[attr-defined]


RATING = {"mean": 3.5, "min": 1.0, "max": 5.0}


def test_exponential_priors_of_the_paper() -> None:
    config = resolved(prior="exponential", counts_per_unit=2.0, prior_rate_w=1.5, rank=7)
    assert model_of(config, RATING) == PoissonNMF(7, 2.0, 1.5, (7 / 3.5) ** 0.5)


@pytest.mark.parametrize(
    ("settings", "likelihood", "link", "biases", "implicit"),
    [
        ({}, Poisson(), Scaled(Softplus(), 1.0), False, True),
        ({"transform": "exp", "implicit": False}, Poisson(), Scaled(Exp(), 1.0), False, False),
        ({"model": "gaussian-mf"}, Gaussian(), Identity(), True, True),
        (
            {"model": "gaussian-mf", "non_negative": True},
            Gaussian(),
            Scaled(Softplus(), 1.0),
            True,
            True,
        ),
    ],
)
def test_hierarchical_models(
    settings: dict[str, Any],
    likelihood: Likelihood,
    link: Transform,
    biases: bool,
    implicit: bool,
) -> None:
    made = model_of(resolved(rank=7, **settings), RATING)
    assert isinstance(made, HierarchicalMF)
    assert (made.rank, made.unit) == (7, 1.0)
    assert (made.likelihood, made.link) == (likelihood, link)
    assert (made.biases, made.implicit) == (biases, implicit)


def test_hierarchical_priors_have_a_thermostat_a_column() -> None:
    """Columns that the ratings say little of would be cold under one for all."""
    for prior, per in (("hierarchical", "column"), ("exponential", "block")):
        config = resolved(prior=prior)
        assert sampler_of(config, domain_of(config)) == SGNHT(0.5, per)
