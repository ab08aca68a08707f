"""Settings of SAC for images: what excludes them, and the preset of DM Control from pixels."""

from typing import Any

import pytest

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.errors import UserError

PIXELS = "dm_control_pixels/walker-walk"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sparsity": {"method": "rigl"}}, "sac.shared_encoder and sparsity.method exclude each other"),
        ({"learner": {"quantization_aware_after": 0.5}}, "sac.shared_encoder and learner.quantization_aware_after"),
        ({"critic_leaves": ["state"]}, "sac.shared_encoder and critic_leaves exclude each other"),
        ({"memory": "gru"}, "sac.random_shift: expected a policy without memory"),
        ({"sac": {"random_shift": -1}}, "sac.random_shift"),
        ({"sac": {"initial_temperature": 0.0}}, "sac.initial_temperature"),
    ],
)
def test_excluded_settings_are_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        settings.build(RunConfig, {"environment": PIXELS, **given})
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_separate_encoder_allows_them() -> None:
    config = RunConfig.model_validate(
        {"environment": PIXELS, "sparsity": {"method": "rigl"}, "sac": {"shared_encoder": False}}
    )
    assert config.sac.random_shift == 4


def test_other_algorithms_ignore_the_settings_of_sac() -> None:
    RunConfig.model_validate({"environment": PIXELS, "algorithm": "td3", "sparsity": {"method": "rigl"}})


def test_the_preset_has_shifts_a_shared_encoder_and_int8_static_actors() -> None:
    config = RunConfig(environment=PIXELS)
    assert (config.algorithm, config.scheme) == ("sac", "int8-static")
    assert (config.sac.random_shift, config.sac.shared_encoder) == (4, True)
    # Half an update for each step.
    assert config.sac.batch_size == 2 * config.rate_limiter.samples_per_insert
    others = RunConfig(environment="dm_control/walker-walk", algorithm="sac")
    assert (others.sac.random_shift, others.sac.shared_encoder, others.sac.initial_temperature) == (0, False, 1.0)


def test_checkpoints_name_the_kind_of_encoder() -> None:
    assert RunConfig(environment=PIXELS).network_settings["sac.shared_encoder"] is True
