"""The settings of a policy's memory, their short form, and what they exclude."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actorq.config import settings
from actorq.config.memory import MemoryConfig
from actorq.config.run_config import RunConfig
from actorq.config.segments import most_environments
from actorq.config.unread import given_in_vain
from actorq.domain.columns import Column, Per, columns_of, unknown_columns
from actorq.domain.limits import MAX_STATE
from actorq.domain.signature import Role, Signature, signature_of
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import InvalidInputError, UserError
from actorq.process import parse_arguments
from actorq_apps.python.arguments import as_tree

SPEC = EnvironmentSpec("CartPole-v1", ArraySpec((4,), "float32"), ArraySpec((), "int64"), sizes=(2,))
PPO = {"algorithm": "ppo"}


def parsed(*arguments: str) -> RunConfig:
    (config,) = parse_arguments("service", "A service.", (RunConfig,), ("--algorithm", "ppo", *arguments))
    assert isinstance(config, RunConfig)
    return config


def test_a_kind_alone_is_short_for_the_section_with_this_kind(tmp_path: Path) -> None:
    expected = MemoryConfig(kind="gru", units=64)
    file = tmp_path / "run.yaml"
    file.write_text("memory: gru\n")
    assert parsed("--memory", "gru", "--memory.units", "64").memory == expected
    assert parsed("--memory.kind", "gru", "--memory.units", "64").memory == expected
    assert parsed("--config", str(file), "--memory.units", "64").memory == expected
    assert parsed("--config", str(file), "--memory", "none").memory == MemoryConfig()
    assert RunConfig.model_validate({**PPO, "memory": "lstm"}).memory == MemoryConfig(kind="lstm")
    assert settings.build(RunConfig, PPO, as_tree({"memory": "gru", "memory__units": 64})).memory == expected
    assert settings.build(RunConfig, {**PPO, "memory": {"units": 64}}, {"memory": "gru"}).memory == expected


def test_the_short_form_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--help-all")
    assert "--memory.kind {none,gru,lstm}, --memory {none,gru,lstm}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "fact"),
    [
        ({"memory": "gruu"}, "setting 'memory.kind': expected one of none, gru, lstm, got 'gruu'"),
        ({"memory": {"units": 0}}, f"expected a whole number from 1 to {MAX_STATE // 2:,}, got 0"),
        ({"memory": 5}, "setting 'memory': expected a section of settings"),
        (
            {"memory": "gru", "algorithm": "d4pg"},
            "expected an algorithm with memory (dqn, td3, sac, ppo, impala), got d4pg",
        ),
        ({"memory": "gru", "algorithm": "xqc"}, "give --memory none"),
        ({"memory": "gru", "learner": {"compile": True}}, "leave learner.compile out"),
        ({"memory": "gru", "algorithm": "sac", "sparsity": {"method": "rlx2"}}, "give --no-dynamic-capacity.enabled"),
        (
            {"memory": {"kind": "gru", "burn_in": 400}, "algorithm": "dqn", "replay": {"capacity": 5000}},
            "replay.capacity must be at least",
        ),
    ],
)
def test_wrong_settings_are_refused_in_one_line(given: dict[str, Any], fact: str) -> None:
    with pytest.raises(UserError) as refused:
        settings.build(RunConfig, {**PPO, **given})
    assert fact in str(refused.value)
    assert "\n" not in str(refused.value)


def test_memory_and_a_frame_stack_exclude_each_other() -> None:
    stacked = replace(SPEC, frame_stack=4)
    MemoryConfig().check_frames(stacked)
    MemoryConfig(kind="gru").check_frames(SPEC)
    with pytest.raises(UserError, match=r"stacks 4 frames.*give --memory none"):
        MemoryConfig(kind="gru").check_frames(stacked)


def test_settings_without_effect_are_reported() -> None:
    def in_vain(**given: Any) -> dict[str, str]:
        return given_in_vain(given, settings.build(RunConfig, given), SPEC)

    assert in_vain(algorithm="ppo", memory={"units": 64}) == {"memory.units": "memory.kind is none"}
    memory = {"kind": "gru", "burn_in": 3, "sequence_length": 9, "units": 64}
    assert in_vain(algorithm="ppo", memory=memory) == {"memory.burn_in": "the algorithm is ppo"}
    assert in_vain(algorithm="impala", memory=memory).keys() == {"memory.burn_in", "memory.sequence_length"}
    # A sequence is not longer than an environment's part of a rollout.
    long = {"algorithm": "ppo", "memory": {"kind": "gru", "sequence_length": 100}, "environments_per_actor": 8}
    assert in_vain(**long, ppo={"rollout_size": 800}) == {}
    assert in_vain(**long, ppo={"rollout_size": 512}) == {
        "memory.sequence_length": "a rollout of ppo.rollout_size steps has only 64 steps of each environment"
    }


@pytest.mark.parametrize(("batch_size", "sequences"), [(1, 1), (40, 1), (41, 2), (256, 7)])
def test_a_batch_has_whole_sequences(batch_size: int, sequences: int) -> None:
    assert MemoryConfig(kind="gru", sequence_length=40).sequences(batch_size) == sequences


@pytest.mark.parametrize(("kind", "size"), [("none", 0), ("gru", 64), ("lstm", 128)])
def test_a_run_has_a_column_for_the_states_of_its_policy(kind: Any, size: int) -> None:
    config = RunConfig.model_validate({**PPO, "memory": {"kind": kind, "units": 64}})
    assert config.memory.state_size == size
    names = config.further_columns(sampled=True)
    assert names == ("log_probabilities", *((f"state_{size}",) if size else ()))
    *_, last = columns_of(SPEC, names)
    if size:
        assert last == Column(f"state_{size}", (size,), last.dtype, Per.SEGMENT, batched=False)
        assert last.array_shape(7, 3, 1) == (3, size)
    assert unknown_columns((*names, "state_0", f"state_{MAX_STATE + 1}", "state_x")) == [
        "state_0",
        f"state_{MAX_STATE + 1}",
        "state_x",
    ]


def test_a_run_cannot_change_its_memory_when_it_resumes() -> None:
    config = RunConfig.model_validate({**PPO, "memory": "gru"})
    assert config.fixed["memory.kind"] == config.network_settings["memory.kind"] == "gru"
    assert config.fixed["memory.units"] == 128


def test_states_count_for_the_size_of_a_segment() -> None:
    memory = MemoryConfig(kind="lstm", units=MAX_STATE // 2)
    assert most_environments(SPEC, memory.columns) < 64 < most_environments(SPEC)


def test_a_state_is_recognized_by_the_names_of_its_input_and_output() -> None:
    signature = signature_of(["observations", "state"], ["logits", "next_state"])
    assert (signature.state, signature.next_state) == ("state", "next_state")
    assert signature_of(["observations"], ["logits"]).state is None
    # A foreign model whose observation is called so.
    assert signature_of(["state"], ["logits", "next_state"]).state is None
    assert signature_of(["observations", "state"], ["logits"]).inputs[1].role is Role.OBSERVATION
    assert Signature.from_text(signature.to_text()) == signature


def test_a_state_is_an_input_and_an_output() -> None:
    whole = signature_of(["observations", "state"], ["logits", "next_state"])
    for inputs, outputs in ((whole.inputs[:1], whole.outputs), (whole.inputs, whole.outputs[:1])):
        with pytest.raises(InvalidInputError, match="a state as an input and as an output"):
            Signature(inputs, outputs)
