"""The parts of a chain that a configuration names."""

from __future__ import annotations

from bnmf.config import TrainConfig
from bnmf.domains import CoRV, Domain, Ito, Mirror
from bnmf.models import PoissonNMF
from bnmf.samplers import Sampler
from bnmf.samplers.kinetics import MonomialGamma
from bnmf.samplers.sghmc import SGHMC
from bnmf.samplers.sgld import SGLD
from bnmf.samplers.sgmgt import SGMGT
from bnmf.samplers.sgnht import SGNHT
from bnmf.samplers.sgrhmc import SGRHMC
from bnmf.samplers.sgrld import SGRLD
from bnmf.transforms import transform_onto
from data_pipeline.errors import InputError


def domain_of(config: TrainConfig) -> Domain:
    """The domain of the model's factors.

    Raises:
        InputError: the transform maps onto another support than the model's.
    """
    support = PoissonNMF.support
    if config.domain == "mirror":
        return Mirror(support)
    try:
        transform = transform_onto(config.transform, support)
    except ValueError as error:
        raise InputError(f"--transform {config.transform} with {config.model}: {error}") from error
    return Ito(transform) if config.domain == "ito" else CoRV(transform)


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
    return made


def _sampler(config: TrainConfig, domain: Domain) -> Sampler:
    match config.sampler:
        case "sgld":
            return SGRLD(domain.metric) if isinstance(domain, Ito) else SGLD()
        case "sgrld":
            return SGRLD(domain.metric)
        case "sghmc":
            return SGHMC(config.friction, config.noise_estimate)
        case "sgnht":
            return SGNHT(config.friction)
        case "sgrhmc":
            return SGRHMC(domain.metric, config.friction, config.noise_estimate)
        case "sgmgt":
            return SGMGT(
                config.friction, MonomialGamma(config.monomial), integrator=config.integrator
            )
        case "sgmgt-d":
            return SGMGT(
                config.friction,
                MonomialGamma(config.monomial),
                position_diffusion=0.1,
                thermostat_diffusion=0.1,
                integrator=config.integrator,
            )
