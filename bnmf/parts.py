"""The parts of a chain that a configuration names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bnmf.config import TrainConfig
from bnmf.domains import CoRV, Domain, Ito, Mirror
from bnmf.hierarchical import HierarchicalMF
from bnmf.likelihoods import Gaussian, Poisson
from bnmf.models import Model, PoissonNMF
from bnmf.samplers import Sampler
from bnmf.samplers.kinetics import MonomialGamma
from bnmf.samplers.sghmc import SGHMC
from bnmf.samplers.sgld import SGLD
from bnmf.samplers.sgmgt import SGMGT
from bnmf.samplers.sgnht import SGNHT
from bnmf.samplers.sgrhmc import SGRHMC
from bnmf.samplers.sgrld import SGRLD
from bnmf.transforms import POSITIVE, REAL, Identity, Support, Transform, transform_onto
from data_pipeline.errors import InputError


def model_of(config: TrainConfig, rating: Mapping[str, Any]) -> Model:
    """The model of a resolved configuration, before anything of it is sampled.

    ``rating`` has the mean, min and max of the ratings.

    Raises:
        InputError: the transform does not map onto the factors' support.
    """
    assert config.rank is not None
    if config.prior == "exponential":
        assert config.counts_per_unit and config.prior_rate_w and config.prior_rate_h
        rates = config.prior_rate_w, config.prior_rate_h
        return PoissonNMF(config.rank, config.counts_per_unit, *rates)
    gaussian = config.model == "gaussian-mf"
    return HierarchicalMF.first(
        config.rank,
        Gaussian() if gaussian else Poisson(),
        _transform(config, POSITIVE if config.non_negative else REAL),
        biases=gaussian,
        implicit=bool(config.implicit),
        mean=rating["mean"],
        unit=(rating["max"] - rating["min"]) / 4 or 1.0,
    )


def domain_of(config: TrainConfig) -> Domain:
    """The domain of what the model samples: proxies, where they have the prior.

    Raises:
        InputError: the transform does not map onto the factors' support.
    """
    if config.prior != "exponential":
        return CoRV(Identity())
    if config.domain == "mirror":
        return Mirror(PoissonNMF.support)
    transform = _transform(config, PoissonNMF.support)
    return Ito(transform) if config.domain == "ito" else CoRV(transform)


def _transform(config: TrainConfig, support: Support) -> Transform:
    assert config.transform is not None
    try:
        return transform_onto(config.transform, support)
    except ValueError as error:
        raise InputError(f"--transform {config.transform}: {error}") from error


def sampler_of(config: TrainConfig, domain: Domain) -> Sampler:
    """The sampler of a resolved configuration.

    Raises:
        InputError: it cannot run with this step size, friction or noise estimate.
    """
    made = _sampler(config, domain)
    assert config.step_size is not None
    try:
        made.check(config.step_size, config.temperature)
    except ValueError as error:
        raise InputError(str(error)) from error
    try:
        if config.implicit:
            made.check(2 * config.step_size, config.temperature)
    except ValueError as error:
        raise InputError(f"implicit weights move by twice the step: {error}") from error
    return made


def _sampler(config: TrainConfig, domain: Domain) -> Sampler:
    friction, noise = config.friction or 0.0, config.noise_estimate or 0.0
    match config.sampler:
        case "sgld":
            return SGRLD(domain.metric) if isinstance(domain, Ito) else SGLD()
        case "sgrld":
            return SGRLD(domain.metric)
        case "sghmc":
            return SGHMC(friction, noise)
        case "sgnht":
            return SGNHT(friction, "column" if config.prior == "hierarchical" else "block")
        case "sgrhmc":
            return SGRHMC(domain.metric, friction, noise)
        case "sgmgt" | "sgmgt-d":
            assert config.monomial is not None and config.integrator is not None
            extra = config.diffusion or 0.0
            kinetics = MonomialGamma(config.monomial)
            return SGMGT(friction, kinetics, extra, extra, integrator=config.integrator)
