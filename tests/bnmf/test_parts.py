"""What the command line asks for is what runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bnmf.config import TrainConfig
from bnmf.domains import CoRV, Domain, Ito, Mirror
from bnmf.models import GaussianMF, PoissonNMF
from bnmf.parts import domain_of, model_of, sampler_of
from bnmf.samplers import Sampler
from bnmf.samplers.kinetics import MonomialGamma
from bnmf.samplers.sghmc import SGHMC
from bnmf.samplers.sgld import SGLD
from bnmf.samplers.sgmgt import SGMGT
from bnmf.samplers.sgnht import SGNHT
from bnmf.samplers.sgrhmc import SGRHMC
from bnmf.samplers.sgrld import SGRLD
from bnmf.transforms import Exp, Icll, Identity, Softplus


def resolved(**settings: Any) -> TrainConfig:
    return TrainConfig(data="demo", **settings).resolved(3.5)


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
    config = resolved(**settings)
    made = sampler_of(config, domain_of(config))
    if isinstance(made, SGRLD | SGRHMC) and isinstance(sampler, SGRLD | SGRHMC):
        assert made.metric.__self__ == SOFTPLUS  # type: ignore[attr-defined]
        made = replace(made, metric=sampler.metric)  # methods are compared by identity
    assert made == sampler


@pytest.mark.parametrize(
    ("settings", "domain"),
    [
        ({}, CoRV(Softplus())),
        ({"transform": "exp"}, CoRV(Exp())),
        ({"transform": "icll"}, CoRV(Icll())),
        ({"domain": "mirror"}, Mirror()),
        ({"domain": "ito", "sampler": "sgld", "transform": "exp"}, Ito(Exp())),
        ({"model": "gaussian-mf"}, CoRV(Identity())),
    ],
)
def test_domains(settings: dict[str, Any], domain: Domain) -> None:
    assert domain_of(resolved(**settings)) == domain


def test_ito_runs_langevin_dynamics_with_its_metric() -> None:
    config = resolved(domain="ito", sampler="sgld")
    made = sampler_of(config, domain_of(config))
    assert isinstance(made, SGRLD) and made.metric.__func__ is Ito.metric  # type: ignore[attr-defined]


def test_models() -> None:
    config = resolved(counts_per_unit=2.0, prior_rate_w=1.5, rank=7)
    made = model_of(config, 3.5)
    assert made == PoissonNMF(7, 2.0, 1.5, (7 / 3.5) ** 0.5)
    other = model_of(resolved(model="gaussian-mf", rank=7), 3.5)
    assert isinstance(other, GaussianMF) and other.rank == 7
    assert other.mean[0].tolist() == [0.0] * 7 + [3.5]
