"""The run's configuration and the arguments of a service process."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st
from pydantic import Field

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.config.sections import ActorConfig, EnergyConfig, ExplorationConfig, ReplayConfig, TransportConfig
from actorq.config.settings import Settings
from actorq.domain.limits import MAX_MESSAGE_BYTES, MAX_SEGMENT_BYTES
from actorq.errors import UserError
from actorq.process import ProcessSettings, parse_arguments


class StoreSettings(Settings):
    """Settings that only one service has."""

    store: Path = Field(Path("policies"), description="folder of the store")


MODELS = (RunConfig, ProcessSettings, StoreSettings)


def parsed(*arguments: str) -> tuple[RunConfig, ProcessSettings, StoreSettings]:
    config, process, store = parse_arguments("service", "A service.", MODELS, arguments)
    assert isinstance(config, RunConfig)
    assert isinstance(process, ProcessSettings)
    assert isinstance(store, StoreSettings)
    return config, process, store


def written(folder: Path, text: str) -> str:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_process_reads_its_settings_from_file_environment_and_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, "actors: 3\nreplay: {capacity: 70000, min_size: 7}\nactor: {segment_length: 5}\n")
    monkeypatch.setenv("ACTORQ_REPLAY__CAPACITY", "80000")
    monkeypatch.setenv("ACTORQ_ACTOR__SEGMENT_LENGTH", "6")
    monkeypatch.setenv("ACTORQ_LISTEN", "127.0.0.1:7")
    config, process, _ = parsed("--config", path, "--replay.capacity", "90000", "--no-dqn.double", "--lifeline")
    assert config.actors == 3
    assert (config.replay.capacity, config.replay.min_size) == (90_000, 7)
    assert config.actor.segment_length == 6
    assert not config.dqn.double
    assert process == ProcessSettings(listen="127.0.0.1:7", lifeline=True)


def test_reads_all_settings_of_the_process_from_the_process_section(tmp_path: Path) -> None:
    path = written(tmp_path, "seed: 9\nprocess: {name: here, store: /data, listen: '0.0.0.0:50051'}\n")
    config, process, store = parsed("--config", path)
    assert config.seed == 9
    assert process == ProcessSettings(name="here", listen="0.0.0.0:50051")
    assert store.store == Path("/data")


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("process: {lisen: a}", "'lisen'.*'listen'"),
        ("process: 5", "'process'.* 5"),
        ("process:", "'process'.* None"),
        ("replay: {min_size: 600, capacity: 1000}", r"replay\.capacity.*replay\.min_size.*600.* 1000"),
        ("energy: {country: de}", r"'energy\.country'.*three capital letters.*'de'"),
        ("dqn: {hidden_sizes: [64, 0]}", r"'dqn\.hidden_sizes\.1'.* 1.* 0"),
        ("exploration: {epsilon: 1.5}", r"'exploration\.epsilon'.* 1,.* 1\.5"),
        (
            f"actor: {{max_segment_bytes: {MAX_SEGMENT_BYTES + 1}}}",
            rf"'actor\.max_segment_bytes'.* {MAX_SEGMENT_BYTES:,}.* {MAX_SEGMENT_BYTES + 1}",
        ),
        # These would not fit into the messages to actors.
        (
            f"actor: {{max_steps_per_policy: {2**32}}}",
            rf"'actor\.max_steps_per_policy'.* {2**32 - 1:,}.* {2**32}",
        ),
        (
            f"evaluation: {{period_updates: {2**63}}}",
            rf"'evaluation\.period_updates'.* 1e18.* {2**63}",
        ),
        (
            f"exploration: {{random_steps: {2**63}}}",
            rf"'exploration\.random_steps'.* 1e18.* {2**63}",
        ),
        ("exploration: {noise: 1.0e+31}", r"'exploration\.noise'.* 1e9.* 1e\+31"),
    ],
)
def test_reports_a_wrong_setting_in_the_file_in_one_line(text: str, fact: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=fact) as caught:
        parsed("--config", written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_the_help_lists_every_setting_with_its_description_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        parsed("--help-all")
    shown = " ".join(capsys.readouterr().out.split())
    for model in MODELS:
        for leaf in settings.leaves(model):
            assert leaf.field.description
            assert f"{leaf.flag} " in shown or f"{leaf.flag}, " in shown
            assert "(default: " in leaf.help
            assert "(default: )" not in leaf.help
            # A run's defaults depend on its preset.
            expected = (leaf.field.description or "") if model is RunConfig else leaf.help
            # argparse also breaks lines at hyphens and slashes.
            assert expected.replace("%%", "%").replace(" ", "") in shown.replace(" ", "")


def test_every_section_and_setting_is_described_and_its_default_is_valid() -> None:
    for leaf in settings.leaves(RunConfig):
        assert leaf.field.description, leaf.path
    assert RunConfig.model_validate(RunConfig().model_dump()) == RunConfig()


def test_the_description_names_the_unit_in_the_settings_name() -> None:
    units = {"_s": "seconds", "_bytes": "bytes", "_watts": " W", "_updates": "updates", "_steps": "steps"}
    for model in (RunConfig, ProcessSettings):
        for leaf in settings.leaves(model):
            for ending, unit in units.items():
                assert not leaf.path[-1].endswith(ending) or unit in (leaf.field.description or ""), leaf.path


def test_the_help_separates_settings_of_the_run_and_of_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        parsed("--help-all")
    lines = capsys.readouterr().out.splitlines()
    assert [lines.count(f"{title}:") for title in ("run", "process")] == [1, 1]


def test_a_segment_fits_into_a_message() -> None:
    assert ActorConfig().max_segment_bytes <= MAX_SEGMENT_BYTES < MAX_MESSAGE_BYTES


configurations = st.builds(
    RunConfig,
    environment=st.text(min_size=1, max_size=20),
    seed=st.integers(0, 2**63),
    target_return=st.none() | st.floats(-1e30, 1e30),
    replay=st.builds(
        ReplayConfig,
        capacity=st.integers(2_000, 10**9),
        min_size=st.integers(1, 1_000),
        priority_exponent=st.floats(0, 1),
        prioritized=st.booleans(),
    ),
    energy=st.builds(EnergyConfig, tdp_watts=st.none() | st.floats(1e-3, 1e6)),
    transport=st.builds(TransportConfig, certificates=st.none() | st.just(Path("/etc/a b"))),
)


@effort(max_examples=25, deadline=None)
@given(config=configurations)
def test_the_written_configuration_gives_the_same_run(
    config: RunConfig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "config.yaml"
    path.write_text(settings.to_yaml(config), encoding="utf-8")
    assert settings.build(RunConfig, settings.from_file(path)) == config


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rate=0.5,sizes=[64,32], name = slow", {"rate": 0.5, "sizes": [64, 32], "name": "slow"}),
        ("path=a=b", {"path": "a=b"}),
        ("{rate: 0.5, sizes: [64, 32]}", {"rate": 0.5, "sizes": [64, 32]}),
        (' {"nested": {"rate": 1}}', {"nested": {"rate": 1}}),
    ],
)
def test_parses_settings_of_a_users_algorithm_from_one_text(
    text: str, expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = ("--algorithm", "my_module:Mine")
    run, *_ = parsed(*outside, "--algorithm-args", text)
    assert run.algorithm_args == expected
    file = written(tmp_path, settings.to_yaml(run))
    monkeypatch.setenv("ACTORQ_ALGORITHM_ARGS", "rate=0.75")
    later, *_ = parsed("--config", file)
    assert later.algorithm_args == {**expected, "rate": 0.75}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:B, c.d:E", ({"a:B": {}}, {"c.d:E": {}})),
        ("[a:B, {c:D: {x: 1}}, a:B]", ({"a:B": {}}, {"c:D": {"x": 1}}, {"a:B": {}})),
        ('["a:B", {"c:D": null}]', ({"a:B": {}}, {"c:D": {}})),
        ("", ()),
    ],
)
def test_parses_the_arguments_of_an_environment_from_one_text(
    text: str, expected: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, *_ = parsed("--environment-args", "gravity=5.0,shape=[2,2]", "--environment-wrappers", text)
    assert (run.environment_args, run.environment_wrappers) == ({"gravity": 5.0, "shape": [2, 2]}, expected)
    assert run.environment_arguments.wrappers == tuple(each for wrapper in expected for each in wrapper.items())
    file = written(tmp_path, settings.to_yaml(run))
    monkeypatch.setenv("ACTORQ_ENVIRONMENT_ARGS", '{"gravity": 9}')
    later, *_ = parsed("--config", file)
    assert later.environment_args == {"gravity": 9, "shape": [2, 2]}
    assert later.environment_wrappers == expected


@pytest.mark.parametrize(
    ("flag", "text", "fact"),
    [
        ("--environment-wrappers", "Wrap", r"'environment_wrappers\.0'.*MODULE:CLASS.*Wrap"),
        ("--environment-wrappers", "[{a:B: {}, c:D: {}}]", "wrapper.*MODULE:CLASS"),
        ("--environment-wrappers", "[{a:B: 5}]", r"'environment_wrappers\.0\.a:B'.*mapping.* 5"),
        ("--environment-wrappers", "[a:B", r"'environment_wrappers'.*VALUE,VALUE.*\[a:B"),
        ("--environment-args", "fast", "'environment_args'.*NAME=VALUE.*fast"),
        ("--environment-args", "{a: 2026-01-01}", r"'environment_args\.a'.*mapping"),
        ("--environment-args", "a=.nan", r"'environment_args\.a'.* nan"),
        ("--environment-args", f"a={'x' * 9000}", "environment_args.*environment_wrappers.* 8192 "),
    ],
)
def test_wrong_arguments_of_an_environment_are_refused_in_one_line(flag: str, text: str, fact: str) -> None:
    with pytest.raises(UserError, match=fact) as refused:
        parsed(flag, text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["fast", "rate:1", "{rate: 1", "[1]", "", "{[1]: 2}"])
def test_refuses_a_text_without_settings_in_one_line(text: str) -> None:
    with pytest.raises(UserError, match=f"'algorithm_args'.*NAME=VALUE.*'{re.escape(text)}'") as caught:
        parsed("--algorithm", "my_module:Mine", "--algorithm-args", text)
    assert "\n" not in str(caught.value)


def test_algorithm_args_of_a_built_in_algorithm_name_its_section() -> None:
    with pytest.raises(UserError, match=r"algorithm_args.*--dqn\."):
        parsed("--algorithm", "dqn", "--algorithm-args", "n_step=3")


def config_of(actors: int, environments: int) -> RunConfig:
    return RunConfig(
        actors=actors,
        environments_per_actor=environments,
        exploration=ExplorationConfig(epsilon=0.4, alpha=7.0),
    )


def test_one_actor_explores_with_all_rates() -> None:
    assert config_of(1, 4).exploration_of(0, 0).epsilons == pytest.approx(
        (0.4, 0.4 ** (1 + 7 / 3), 0.4 ** (1 + 14 / 3), 0.4**8), rel=1e-12
    )


def test_two_actors_alternate_over_the_rates() -> None:
    config = config_of(2, 2)
    first, second = config.exploration_of(0, 0).epsilons, config.exploration_of(1, 0).epsilons
    assert first == pytest.approx((0.4, 0.4 ** (1 + 14 / 3)), rel=1e-12)
    assert second == pytest.approx((0.4 ** (1 + 7 / 3), 0.4**8), rel=1e-12)
    assert sorted((*first, *second), reverse=True) == list(config_of(1, 4).exploration_of(0, 0).epsilons)


def test_an_extra_actor_shares_the_rates_of_another() -> None:
    config = config_of(2, 8)
    assert config.exploration_of(2, 0).epsilons == config.exploration_of(0, 0).epsilons
    assert config.exploration_of(5, 0).epsilons == config.exploration_of(1, 0).epsilons


def test_a_single_environment_explores_at_the_base_rate() -> None:
    assert config_of(1, 1).exploration_of(0, 0).epsilons == (0.4,)


@pytest.mark.parametrize(
    ("asked", "aware", "compensates"),
    [
        ("none", "none", True),
        ("none", "0.5", False),
        ("none", "0.0", False),
        ("true", "0.5", True),
        ("false", "none", False),
    ],
)
def test_compensates_rounding_except_in_quantization_aware_training(asked: str, aware: str, compensates: bool) -> None:
    environment = {"ACTORQ_QUANTIZER__COMPENSATE": asked, "ACTORQ_LEARNER__QUANTIZATION_AWARE_AFTER": aware}
    config = settings.build(RunConfig, settings.from_environment(RunConfig, environment))

    assert config.resolved_quantizer().compensate is compensates
    assert config.resolved_quantizer().gate == config.quantizer.gate


@pytest.mark.parametrize("scheme", ["fp32", "int4", "int8-static", "auto"])
def test_bits_of_quantization_aware_training_need_a_scheme_that_leaves_them_open(scheme: str) -> None:
    learner = {"quantization_aware_after": 0.5, "quantization_aware_bits": 3}
    with pytest.raises(UserError, match=rf"quantization_aware_bits needs scheme int8-weights or int8, got {scheme}: "):
        settings.build(RunConfig, {"scheme": scheme, "learner": learner})
    for fitting in ("int8-weights", "int8"):
        assert settings.build(RunConfig, {"scheme": fitting, "learner": learner}).learner.quantization_aware_bits == 3


def test_a_scheme_of_bits_without_a_kernel_names_what_acts_instead_and_its_speed() -> None:
    instead = r"no kernel computes 3 bits; int8 with learner.quantization_aware_bits 3 .* as fast as int8\), got 'int3'"
    with pytest.raises(UserError, match=instead):
        settings.build(RunConfig, {"scheme": "int3"})
    with pytest.raises(UserError, match="installed package, got 'int16'"):
        settings.build(RunConfig, {"scheme": "int16"})


@pytest.mark.parametrize("most", [1, 8])
def test_max_steps_per_policy_must_exceed_the_segment_length(most: int) -> None:
    actor = {"segment_length": 8}
    with pytest.raises(ValueError, match=rf"max_steps_per_policy.*actor\.segment_length.*8.* {most}"):
        RunConfig.model_validate({"actor": {**actor, "max_steps_per_policy": most}})
    assert RunConfig.model_validate({"actor": {**actor, "max_steps_per_policy": 25}}).actor.max_steps_per_policy == 25


def test_max_steps_per_policy_must_allow_the_steps_until_the_next_policy() -> None:
    # 40 updates of 64 samples, 8 of them for each step: 320 steps of 16 environments.
    given = {
        "actors": 2,
        "environments_per_actor": 8,
        "dqn": {"batch_size": 64},
        "publication": {"period_updates": 40},
        "rate_limiter": {"samples_per_insert": 8.0},
        "actor": {"segment_length": 8, "max_steps_per_policy": 19},
    }
    with pytest.raises(ValueError, match=r"max_steps_per_policy.* 20.* 19.*publication\.period_updates.*40"):
        RunConfig.model_validate(given)
    enough = {**given, "actor": {"segment_length": 8, "max_steps_per_policy": 20}}
    assert RunConfig.model_validate(enough).actor.max_steps_per_policy == 20


@pytest.mark.parametrize(
    ("changes", "sampling"),
    [
        ({}, ""),
        ({"algorithm": "sac", "ppo": {"squash": True}}, ""),
        ({"algorithm": "own:Algorithm"}, ""),
        ({"algorithm": "ppo"}, "clipped"),
        ({"algorithm": "ppo", "ppo": {"squash": True}}, "squashed"),
        ({"algorithm": "impala", "impala": {"squash": True}}, "squashed"),
    ],
)
def test_an_on_policy_algorithm_determines_the_sampler(changes: dict[str, Any], sampling: str) -> None:
    assert RunConfig.model_validate(changes).sampling == sampling


def test_a_run_with_the_networks_of_another_takes_no_random_steps() -> None:
    random = ExplorationConfig(random_steps=1000)
    assert RunConfig(exploration=random).exploration_of(0, 0).random_steps > 0
    assert RunConfig(exploration=random, init_from="/runs/other").exploration_of(0, 0).random_steps == 0


def test_a_source_has_an_absolute_path_or_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parsed("--init-from", "runs/other")[0].init_from == str(tmp_path / "runs/other")
    assert parsed("--init-from", "~/other")[0].init_from == str(Path.home() / "other")
    assert parsed("--init-from", "s3://bucket/other")[0].init_from == "s3://bucket/other"
    assert parsed("--init-from", "file:///mounted/other")[0].init_from == "file:///mounted/other"
    assert parsed("--init-from", "none")[0].init_from is None


@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        (("--init-replay",), "init_replay needs init_from"),
        (("--init-from", ""), "'init_from': expected text of 1 to 1,024 characters"),
        (("--init-from", "x" * 2000), "'init_from': expected text of 1 to 1,024 characters"),
        (("--init-from", "runs/a", "--init-replay", "--algorithm", "ppo"), "init_replay: expected an algorithm with a"),
    ],
)
def test_a_source_that_cannot_be_is_refused(flags: tuple[str, ...], fact: str) -> None:
    with pytest.raises(UserError, match=fact):
        parsed(*flags)


def test_a_resumed_run_keeps_its_source() -> None:
    before, after = RunConfig(init_from="/runs/a"), RunConfig(init_from="/runs/b")
    assert before.fixed["init_from"] != after.fixed["init_from"]


def test_the_settings_that_networks_depend_on_are_json() -> None:
    settings = RunConfig(algorithm="sac", environment="Pendulum-v1").network_settings
    assert json.loads(json.dumps(settings)) == settings
    assert settings["sac.hidden_sizes"] == [256, 256]
    assert not [name for name in settings if name.startswith("dqn")]
