import errno
import fcntl
import re
from pathlib import Path

import pytest

from actorq import __version__
from actorq.config import settings
from actorq.config.algorithms import DQNConfig, PPOConfig
from actorq.config.run_config import RunConfig
from actorq.config.sections import ActorConfig, ReplayConfig
from actorq.config.unread import unread
from actorq.process import Sources, argument_parser
from actorq.rundirectory import RunDirectory
from actorq.statefiles.documents import write_document
from actorq_apps.cli.main import main
from actorq_apps.cli.train import resolved_config


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The single line of an error for a mistake."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("error: ").rstrip("\n")


def test_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"actorq {__version__}\n"


def test_help_shows_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in (
        "train",
        "compare",
        "evaluate",
        "policies",
        "export",
        "status",
        "learner",
        "quantizer",
        "actor",
        "meter",
    ):
        assert f"\n  {command} " in shown


def test_the_full_help_of_train_shows_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["train", "--help-all"])
    shown = capsys.readouterr().out
    for leaf in settings.leaves(RunConfig):
        assert leaf.flag in shown


def test_the_help_of_train_fits_a_screen_and_names_every_section_that_the_algorithm_reads(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        main(["train", "--help"])
    shown = capsys.readouterr().out
    assert shown.count("\n") <= 60
    assert "--environment VALUE" in shown
    ignored = unread("dqn")
    for leaf in settings.leaves(RunConfig):
        if len(leaf.path) > 1:
            section = ".".join(leaf.path[:-1])
            assert (f"--{section}.* ".replace("_", "-") in shown) is (section not in ignored)


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ([], "command .*actorq --help"),
        (["trian"], "'trian'.*train"),
        (["train", "--sed", "1"], "'--sed'.*'--seed'"),
        (["train", "--max-env", "9"], "'--max-env'.*'--max-environment-steps'"),
        (["train", "--batch-size", "9"], "'--batch-size'.*'--dqn.batch-size'"),
        (["train", "--algorithm", "sac", "--batch-size", "9"], "'--batch-size'.*'--sac.batch-size'"),
        (["train", "--replay.capcity", "9"], "'--replay.capcity'.*'--replay.capacity'"),
        (["train", "--seed", "x"], "'seed'.*'x'"),
        (["train", "--seed", str(2**63)], f"'seed'.* {2**63 - 1:,}, got '{2**63}'"),
        (
            ["sweep", "--directory", "s", "--search", "dqn.n_step=1..3", "--namespace", "lab"],
            "--namespace.*--template",
        ),
        (
            ["sweep", "--directory", "s", "--search", "dqn.n_step=1..3", "--sampler-seed", "-1"],
            "--sampler-seed.* 4294967295,.*'-1'",
        ),
        (["train", "--actors", "0"], "'actors'.*'0'"),
        (["train", "--algorithm", "reinforce"], "'algorithm'.* dqn, .*reinforce"),
        (["train", "--actor-module", "no.such.module"], "--actor-module.*no.such.module"),
        (["train", "--config", "nope.yaml"], "--config.*nope.yaml.*No such file"),
        (["train", "--resume"], "--resume .*--run-directory"),
        (["train", "--resume", "--run-directory", "nope"], "directory nope "),
        (["evaluate"], "required: RUN_DIR"),
        (["evaluate", "nope"], "directory nope "),
        (["evaluate", "nope", "--episodes", "0"], "'episodes'.* from 1 to 10,000, or none, got '0'"),
        (
            ["evaluate", "nope", "--scheme", "int3"],
            "'scheme'.*one of fp32, int8-weights, int8, int8-static, int4, auto, .*got 'int3'",
        ),
        (["evaluate", "nope", "--versio", "3"], "'--versio'.*'--version'"),
        (["status"], "runs/.*--learner"),
        (["status", "--learner", "here"], "--learner: expected HOST:PORT.*'here'"),
        (["sweep", "--directory", "s", "--sampler", "foo"], "--sampler: expected one of tpe, random, grid, got 'foo'"),
        (["compare", "--directory", "c", "--seeds", "x"], "--seeds: expected a whole number, got 'x'"),
        (["policies", "--quantizer", "here"], "--quantizer: expected HOST:PORT.*'here'"),
        (["train", "--max-environment-steps", "1.5"], "'max_environment_steps': expected a whole number .*'1.5'"),
        (["train", "Pendulum-v1", "--lr", "1e-3"], "'--lr'.*'--sac.learning-rate'"),
        (["check", "CartPole-v1", "--steps", "1.5"], "--steps: expected 1 to 1,000,000 steps, got '1.5'"),
    ],
)
def test_a_wrong_command_or_flag_gets_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], fact: str
) -> None:
    assert re.search(fact, error_of(capsys, *arguments))


def test_an_unknown_setting_in_the_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.yaml").write_text("dqn: {batchsize: 3}\n")
    assert re.search(r"'dqn\.batchsize'.*'dqn\.batch_size'", error_of(capsys, "train", "--config", "run.yaml"))


def test_an_unknown_variable_of_the_project_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACTORQ_SEDE", "3")
    assert "ACTORQ_SEDE" in error_of(capsys, "train")


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["--environment", "Acrobot-v1"], "environment CartPole-v1 .* Acrobot-v1"),
        (["--dqn.hidden-sizes", "32,32"], r"dqn\.hidden_sizes 64,64 .* 32,32"),
        (["--no-dqn.dueling"], r"dqn\.dueling True .* False"),
        (["--replay.capacity", "9000"], r"replay\.capacity 7000 .* 9000"),
        (
            ["--environment-args", "sutton_barto_reward=yes"],
            r'environment_args \{\} .* \{"sutton_barto_reward": true\}',
        ),
        (
            ["--environment-wrappers", "[{my:Wrap: {by: 2}}]"],
            r'environment_wrappers \[\] .* \[\{"my:Wrap": \{"by": 2\}\}\]',
        ),
        (["--sparsity.method", "rigl"], r"sparsity\.method dense .* rigl"),
    ],
)
def test_a_setting_that_a_run_cannot_change_is_refused_before_anything_is_written(
    capsys: pytest.CaptureFixture[str], arguments: list[str], fact: str
) -> None:
    RunDirectory(Path("run")).create(
        RunConfig(dqn=DQNConfig(hidden_sizes=(64, 64), dueling=True), replay=ReplayConfig(capacity=7_000))
    )
    before = {path: path.stat().st_mtime_ns for path in Path("run").rglob("*")}
    message = error_of(capsys, "train", "--resume", "--run-directory", "run", *arguments)
    assert re.match(f"--resume.*{fact}; .*--run-directory$", message)
    assert {path: path.stat().st_mtime_ns for path in Path("run").rglob("*")} == before


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["--sparsity.actor", "0.5"], r"sparsity\.actor 0\.9 .* 0\.5"),
        (["--sparsity.structured"], r"sparsity\.structured False .* True"),
    ],
)
def test_a_sparse_run_keeps_its_masks(capsys: pytest.CaptureFixture[str], arguments: list[str], fact: str) -> None:
    RunDirectory(Path("run")).create(RunConfig.model_validate({"sparsity": {"method": "rigl", "period_updates": 10}}))
    arguments = ["--sparsity.method", "rigl", *arguments]
    message = error_of(capsys, "train", "--resume", "--run-directory", "run", *arguments)
    assert re.match(f"--resume.*{fact}; ", message)


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["--ppo.epochs", "4"], r"ppo\.epochs 10 .* 4"),
        (["--ppo.rollout-size", "4096"], r"ppo\.rollout_size 2048 .* 4096"),
        (["--ppo.gae-lambda", "0.9"], r"ppo\.gae_lambda 0\.95 .* 0\.9"),
        (["--ppo.discount", "0.9"], r"ppo\.discount 0\.99 .* 0\.9"),
        (["--ppo.squash"], r"ppo\.squash False .* True"),
        (["--actor.segment-length", "16"], r"actor\.segment_length 64 .* 16"),
    ],
)
def test_an_on_policy_run_keeps_its_horizon(
    capsys: pytest.CaptureFixture[str], arguments: list[str], fact: str
) -> None:
    RunDirectory(Path("run")).create(
        RunConfig(
            algorithm="ppo",
            ppo=PPOConfig(rollout_size=2048, epochs=10, gae_lambda=0.95, discount=0.99),
            actor=ActorConfig(segment_length=64),
        )
    )
    message = error_of(capsys, "train", "--resume", "--run-directory", "run", *arguments)
    assert re.match(f"--resume.*{fact}; ", message)


@pytest.mark.parametrize(
    ("algorithm", "warned"),
    [
        (
            "ppo",
            [
                "dqn.*",
                "rate_limiter",
                "exploration",
                "publication.period_updates",
                "replay.min_size",
                "preset data-rich",
            ],
        ),
        ("dqn", ["queue", "evaluation.sampled", "exploration.noise"]),
    ],
)
def test_warns_about_settings_of_the_other_kind_of_algorithm(
    capsys: pytest.CaptureFixture[str], algorithm: str, warned: list[str]
) -> None:
    arguments = ["--dqn.batch-size", "8", "--rate-limiter.samples-per-insert", "2", "--exploration.noise", "0.5"]
    arguments += ["--publication.period-updates", "8", "--replay.min-size", "64", "--queue.max-policy-lag", "2"]
    arguments += ["--preset", "data-rich"]
    models = (RunConfig,)
    parser = argument_parser("test", "", models)
    given = Sources.read(models, parser.parse_args(["--algorithm", algorithm, *arguments, "--evaluation.sampled"]))
    assert resolved_config(given).algorithm == algorithm
    told = capsys.readouterr().err.splitlines()
    for name, line in zip(warned, told, strict=True):
        assert re.match(f"warning: {re.escape(name)} .* {algorithm}$", line)


@pytest.mark.parametrize(
    ("wrapper", "warned"),
    [
        ("gymnasium.wrappers:NormalizeReward", "warning: evaluations .*gymnasium.wrappers:NormalizeReward"),
        ("gymnasium.wrappers:NormalizeObservation", "warning: gymnasium.wrappers:NormalizeObservation .*statistics"),
        ("gymnasium.wrappers:TimeAwareObservation", ""),
    ],
)
def test_warns_about_wrappers_that_affect_evaluations(
    capsys: pytest.CaptureFixture[str], wrapper: str, warned: str
) -> None:
    parser = argument_parser("test", "", (RunConfig,))
    resolved_config(Sources.read((RunConfig,), parser.parse_args(["--environment-wrappers", wrapper])))
    told = capsys.readouterr().err
    assert re.match(warned, told)
    assert told.count("\n") == bool(warned)


@pytest.mark.parametrize(
    ("scheme", "bits", "warned"),
    [
        ("int8", "3", "scheme int8 has no kernel for 3 bits: actors use 8 bits, as fast as int8"),
        ("int8-weights", "2", "scheme int8-weights has no kernel for 2 bits: actors use 8 bits, as fast as fp32"),
        ("int8", "8", ""),
    ],
)
def test_warns_about_bits_of_training_that_no_kernel_computes(
    capsys: pytest.CaptureFixture[str], scheme: str, bits: str, warned: str
) -> None:
    given = ["--scheme", scheme, "--learner.quantization-aware-bits", bits, "--learner.quantization-aware-after", "0.5"]
    resolved_config(Sources.read((RunConfig,), argument_parser("test", "", (RunConfig,)).parse_args(given)))
    told = capsys.readouterr().err
    assert warned in told
    assert told.count("\n") == bool(warned)


@pytest.mark.parametrize(
    ("algorithm", "environment"),
    [("dqn", "CartPole-v1"), ("ppo", "CartPole-v1"), ("sac", "Pendulum-v1"), ("xqc", "Pendulum-v1")],
)
def test_a_runs_own_file_causes_no_warning_about_settings(
    capsys: pytest.CaptureFixture[str], algorithm: str, environment: str
) -> None:
    parser = argument_parser("test", "", (RunConfig,))

    def resolve(*arguments: str) -> RunConfig:
        return resolved_config(Sources.read((RunConfig,), parser.parse_args(arguments)))

    first = resolve("--algorithm", algorithm, "--environment", environment, f"--{algorithm}.batch-size", "16")
    run = RunDirectory(Path("run"))
    run.create(first)
    assert resolve("--config", str(run.config)) == first
    assert capsys.readouterr().err == ""


def test_a_run_keeps_the_settings_of_a_users_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    RunDirectory(Path("run")).create(RunConfig(algorithm="my:Own", algorithm_args={"rate": 1}))
    message = error_of(capsys, "train", "--resume", "--run-directory", "run", "--algorithm-args", "rate=2")
    assert re.match(r'--resume.*algorithm_args \{"rate": 1\} .* \{"rate": 2\}; ', message)


def test_the_folder_and_resume_of_train_come_from_the_file_too(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.yaml").write_text("process: {run_directory: nope, resume: true, store: of/another}\n")
    assert "directory nope " in error_of(capsys, "train", "--config", "run.yaml")
    assert "directory nope " in error_of(capsys, "evaluate", "--config", "run.yaml")
    Path("run.yaml").write_text("process: {run_directry: nope}\n")
    assert "'run_directry'" in error_of(capsys, "train", "--config", "run.yaml")


@pytest.mark.parametrize(
    ("command", "variables", "fact"),
    [
        ("train", {"RUN_DIRECTORY": "nope", "RESUME": "true"}, "directory nope "),
        ("train", {"LEARNER": "127.0.0.1:1", "RESUME": "yes"}, "--resume .*--run-directory"),
        ("evaluate", {"RUN_DIRECTORY": "nope"}, "directory nope "),
        ("evaluate", {"RUN_DIRECTORY": "nope", "VERSION": "0"}, "'version'.*best, newest.*'0'"),
        ("evaluate", {"EPISODES": "0"}, "'episodes'.* 1 .*'0'"),
        ("status", {"LEARNER": "here", "RUN_DIRECTORY": "run"}, "HOST:PORT.*'here'"),
        ("status", {"WATCH": "maybe"}, "'watch'.*true or false.*'maybe'"),
    ],
)
def test_settings_of_a_command_come_from_the_environment_too(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    variables: dict[str, str],
    fact: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"ACTORQ_{name}", value)
    assert re.search(fact, error_of(capsys, command))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("train", "(default: runs/ENVIRONMENT-DATE)"),
        ("train", "4 stopped"),
        ("evaluate", "(default: the run's own; "),
        ("status", "of the learner (default: that of the newest run"),
        ("reset-environment", "of the learner (default: that of the newest run"),
    ],
)
def test_help_shows_the_real_defaults_and_exit_codes(
    capsys: pytest.CaptureFixture[str], command: str, expected: str
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: actorq {command}")
    assert expected in " ".join(shown.split()).replace("- ", "-")


def test_reports_masks_that_would_never_change_before_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    error = error_of(capsys, "train", "--sparsity.method", "rigl", "--max-environment-steps", "1200")
    assert "sparsity.period_updates" in error
    assert not Path("runs").exists()


def test_reports_a_useless_dynamic_capacity_before_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    run = ("--environment", "Pendulum-v1", "--algorithm", "td3", "--replay.capacity", "1000000")
    error = error_of(capsys, "train", *run, "--dynamic-capacity.enabled")
    assert re.search(r"dynamic_capacity\.min_size .*max_environment_steps.*20000.* 100000", error)
    assert not Path("runs").exists()


def test_a_resumed_run_keeps_its_kind_of_replay_even_if_derived(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = RunDirectory(Path("run"))
    run.create(RunConfig(environment="Pendulum-v1", algorithm="td3", sparsity={"method": "rlx2"}))
    before = run.config.read_bytes()
    error = error_of(capsys, "train", "--run-directory", "run", "--resume", "--no-dynamic-capacity.enabled")
    assert re.match(f"--resume.*dynamic_capacity.enabled True .*{run.config}.* False; ", error)
    assert run.config.read_bytes() == before


def test_a_run_whose_budget_is_used_up_is_not_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory(Path("run"))
    run.create(RunConfig(max_environment_steps=5_000))
    summary = {"state": "budget ended", "environment_steps": 5_121}
    write_document(run.summary, summary)
    error = error_of(capsys, "train", "--resume", "--run-directory", "run")
    assert re.match("--resume.* 5,000 .*5,121.*--max-environment-steps$", error)


def test_a_folder_that_is_no_run_is_not_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run").mkdir()
    assert "config.yaml" in error_of(capsys, "train", "--resume", "--run-directory", "run")


def test_a_run_without_policies_cannot_be_evaluated(capsys: pytest.CaptureFixture[str]) -> None:
    RunDirectory(Path("run")).create(RunConfig())
    assert "run/policies " in error_of(capsys, "evaluate", "run")


def test_reports_an_absent_learner_with_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--learner", "127.0.0.1:1"]) == 2
    message = capsys.readouterr().err
    assert "learner at 127.0.0.1:1 " in message
    assert "--learner" in message


def test_reports_a_disk_without_locks_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    RunDirectory(Path("run")).create(RunConfig())
    monkeypatch.setattr(fcntl, "flock", refuse)
    assert main(["train", "--resume", "--run-directory", "run"]) == 1
    assert capsys.readouterr().err.endswith("No locks available\n")


def test_reports_a_full_disk_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory(Path("run"))
    run.create(RunConfig())
    Path("run/.config.yaml.partial").symlink_to("/dev/full")
    assert main(["train", "--resume", "--run-directory", "run", "--max-seconds", "5"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match("error: run/config.yaml .*No space left", line)
