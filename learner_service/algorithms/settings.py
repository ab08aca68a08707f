"""The settings of a run's algorithm: a section of the configuration for ours, `algorithm_args` for those of users."""

from typing import TypeVar, cast

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.config.settings import Settings
from actorq.errors import UserError

S = TypeVar("S", bound=Settings)


def settings_of(config: RunConfig, model: type[S]) -> S:
    """The settings of an algorithm whose class has `settings = model`.

    Raises UserError with one line when `config.algorithm_args` has something that `model` does not take.
    """
    section = next((name for name, field in RunConfig.model_fields.items() if field.annotation is model), None)
    if section is None:
        return settings.build(model, config.algorithm_args, section="algorithm_args")
    if config.algorithm_args:
        raise UserError(f"algorithm_args: the settings of algorithm {config.algorithm} are --{section}.NAME")
    return cast(S, getattr(config, section))
