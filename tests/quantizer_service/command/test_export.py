"""`actorq export`, and the policies that `actorq.load_policy` loads from its files."""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import actorq
from actorq import __version__
from actorq.arithmetic import Arithmetic
from actorq.config.run_config import RunConfig
from actorq.domain.policy import SIGNED, UNSIGNED, WEIGHT_ENCODINGS, PolicyGraph
from actorq.domain.signature import METADATA
from actorq.errors import InvalidInputError, UserError
from actorq.process import main
from actorq.rundirectory import RunDirectory
from actorq.weightencoding import weight_encoding_of
from quantizer_service.command import export
from tests.builders.graphs import resigned
from tests.builders.processors import INT8_HERE
from tests.builders.stored_policies import CONTINUOUS, DISCRETE, stored_run
from tests.quantizer_service.policy_graphs import ACTIONS, OBSERVATION_SIZE, categorical, d4pg, mlp
from tests.quantizer_service.policy_runs import checkpoint, outputs_of, random_observations, random_parameters
from tests.quantizer_service.ruined_policies import DEEP, INNER, dead_observations, deep_parameters

GRAPH = mlp(32, 32, 32)
RETURNS = {1: 50.0, 2: 30.0}

Exit = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of three versions, of which the first is the best."""
    versions = [checkpoint(GRAPH, version) for version in (1, 2, 3)]
    return stored_run(tmp_path_factory.mktemp("stored") / "run", GRAPH, versions, RETURNS)


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run with a single version, which int8 ruins: the gate puts each layer in float."""
    ruined = checkpoint(
        DEEP,
        1,
        parameters=deep_parameters(ruined=INNER),
        calibration=dead_observations(),
        graph_digest=DEEP.digest,
    )
    return stored_run(tmp_path_factory.mktemp("refused") / "run", DEEP, [ruined])


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Exit:
    """Runs the command in its own folder. Returns the exit code, the output and the errors."""
    monkeypatch.chdir(tmp_path)

    def called(*arguments: str | Path) -> tuple[int, str, str]:
        code = main(lambda: export.run([str(each) for each in arguments]))
        return code, *capsys.readouterr()

    return called


def mistake(command: Exit, *arguments: str | Path) -> str:
    before = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    code, out, err = command(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert {path: path.read_bytes() for path in Path().iterdir() if path.is_file()} == before
    return err.removeprefix("error: ").rstrip("\n")


def description(path: str = "policy.json") -> Any:
    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(Path(path).read_text(), parse_constant=no_constant)


def test_the_best_version_is_written_unchanged(run: RunDirectory, command: Exit) -> None:
    stored = (run.policies / "00000001" / f"policy-{INT8_HERE}.onnx").read_bytes()
    out = (
        f"policy.onnx: version 1, int8 with {INT8_HERE.weight_encoding} weights, onnxruntime form, "
        f"{len(stored):,} bytes\n"
        "policy.json: its description\n"
    )
    assert command(run.root) == (0, out, "")
    assert Path("policy.onnx").read_bytes() == stored


def test_the_description_is_sufficient_to_use_the_file(run: RunDirectory, command: Exit) -> None:
    assert command(run.root, "-o", "mine.onnx")[0] == 0
    told, model = description("mine.json"), Path("mine.onnx").read_bytes()
    assert (told["format"], told["actorq_version"], told["file"]) == (1, __version__, "mine.onnx")
    assert (told["sha256"], told["size_bytes"]) == (hashlib.sha256(model).hexdigest(), len(model))
    assert (told["version"], told["updates"], told["run_id"], told["algorithm"]) == (1, 100, "run", "dqn")
    assert (told["scheme"], told["effective_scheme"], told["form"]) == ("int8", "int8", "onnxruntime")
    assert told["inputs"] == {"observation": {"shape": ["batch", OBSERVATION_SIZE], "dtype": "float32"}}
    assert list(told["outputs"]) == ["q_values"]
    assert told["environment"]["observations"]["shape"] == [OBSERVATION_SIZE]
    assert told["environment"]["sizes"] == [ACTIONS]
    assert told["evaluation"] == {
        "mean_return": 50.0,
        "min_return": 49.0,
        "max_return": 51.0,
        "episodes": 2,
        "scheme": "int8",
    }
    assert told["fidelity"]["passed"]
    assert told["fidelity"]["layers"][0]["name"] == "layers.0"


def test_the_page_of_the_description_has_each_of_its_fields(run: RunDirectory, command: Exit) -> None:
    assert command(run.root)[0] == 0
    told = description()
    page = Path(__file__).parents[3].joinpath("docs", "reference", "policy-json.md").read_text("utf-8")
    for title, fields in (("Fields", told), ("environment", told["environment"]), ("fidelity", told["fidelity"])):
        section = page.partition(f"## {title}\n")[2].partition("\n## ")[0]
        cells = re.findall(r"^\| (`.+?`) \|", section, re.MULTILINE)
        assert {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} == fields.keys(), title


@pytest.mark.parametrize(("choice", "version"), [("best", 1), ("newest", 3), ("2", 2)])
def test_a_version_can_be_chosen(run: RunDirectory, command: Exit, choice: str, version: int) -> None:
    assert command(run.root, "--version", choice)[0] == 0
    assert description()["version"] == version


@pytest.mark.parametrize("form", ["onnxruntime", "standard"])
@pytest.mark.parametrize("scheme", ["fp32", "int8-weights", "int8-static", "int4"])
def test_each_scheme_can_be_written_in_each_form(run: RunDirectory, command: Exit, scheme: str, form: str) -> None:
    before = sorted(run.root.rglob("*"))
    assert command(run.root, "--scheme", scheme, "--form", form)[0] == 0
    told = description()
    assert (told["scheme"], told["effective_scheme"], told["form"]) == (scheme, scheme, form)
    assert (told["fidelity"]["max_error"] > 0) == (scheme != "fp32")
    # The run is only read.
    assert sorted(run.root.rglob("*")) == before


def test_the_fidelity_of_the_standard_form_is_measured_anew(run: RunDirectory, command: Exit) -> None:
    errors = []
    for form in ("onnxruntime", "standard"):
        assert command(run.root, "--scheme", "int4", "--form", form, "-o", f"{form}.onnx")[0] == 0
        errors.append(description(f"{form}.json")["fidelity"]["mean_error"])
    assert errors[0] != errors[1]
    assert errors[1] == pytest.approx(errors[0], rel=0.5)


def test_an_exported_policy_is_loaded_and_predicts(run: RunDirectory, command: Exit) -> None:
    assert command(run.root, "--scheme", "fp32")[0] == 0
    policy = actorq.load_policy("policy.onnx")
    rows = random_observations(8, seed=3)["observation"]
    expected = outputs_of(Path("policy.onnx").read_bytes(), {"observation": rows}).argmax(1)
    np.testing.assert_array_equal(policy.predict(rows), expected)
    assert [policy.predict(row) for row in rows] == expected.tolist()
    # Lists and wider types are as good; a single action is hashable, as tabular environments need it.
    assert policy.predict(rows[0].astype(np.float64).tolist()) == expected[0]
    assert len({policy.predict(rows[0])}) == 1
    assert (policy.version, policy.scheme, policy.environment) == (1, "fp32", DISCRETE)


def test_a_run_is_loaded_without_an_export(run: RunDirectory) -> None:
    best = actorq.load_policy(run.root)
    assert (best.version, best.scheme, best.environment) == (1, "int8", DISCRETE)
    assert actorq.load_policy(str(run.root), version=2).version == 2
    assert actorq.load_policy(run.root, version="newest", scheme="int8").version == 3


def test_a_loaded_policy_needs_onnx_runtime_and_numpy_alone(run: RunDirectory) -> None:
    script = "import actorq, sys; actorq.load_policy(sys.argv[1]).predict([0.0] * 5); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script, run.root], capture_output=True, text=True, check=True)
    modules = set(loaded.stdout.split())
    assert {"onnxruntime", "numpy"} <= modules
    assert not modules & {"onnx", "torch", "gymnasium", "safetensors", "quantizer_service", "actor_service"}


def test_without_onnx_runtime_one_line_names_the_package(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"ONNX Runtime.*actorq\[actor\]"):
        actorq.load_policy(run.root)


def test_an_error_says_that_the_processor_computes_int8_wrongly_in_each_encoding(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("actorq.inference.loading.arithmetic", lambda: Arithmetic((UNSIGNED,)))
    actorq.load_policy(run.root)
    assert not caplog.records
    monkeypatch.setattr("actorq.inference.loading.arithmetic", lambda: Arithmetic(()))
    actorq.load_policy(run.root)
    assert re.search(f"{run.root}: .*int8 .*int8-weights", caplog.text)


@pytest.mark.parametrize("encoding", WEIGHT_ENCODINGS)
def test_a_policy_is_exported_in_the_encoding_for_its_target(
    run: RunDirectory, encoding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "policy.onnx"
    assert export.run([str(run.root), "--weight-encoding", encoding, "-o", str(path)]) == 0
    assert weight_encoding_of(path.read_bytes()) == encoding
    assert json.loads(path.with_suffix(".json").read_text())["weight_encoding"] == encoding
    assert re.search(f"int8 .*{encoding}", capsys.readouterr().out)


def test_a_policy_for_another_processor_is_loaded_exactly_with_advice_to_export_again(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, rows = tmp_path / "policy.onnx", random_observations(4)["observation"]
    assert export.run([str(run.root), "--weight-encoding", SIGNED, "-o", str(path)]) == 0
    monkeypatch.setattr("actorq.inference.loading.arithmetic", lambda: Arithmetic((UNSIGNED,)))
    actions = actorq.load_policy(path).predict(rows)
    (line,) = caplog.messages
    assert re.match(f"{path}: .*signed .*--weight-encoding unsigned", line)
    assert np.array_equal(actions, actorq.load_policy(run.root).predict(rows))


@pytest.mark.parametrize("form", ["onnxruntime", "standard"])
def test_float_policies_have_no_encoding(run: RunDirectory, form: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.onnx"
    assert export.run([str(run.root), "--scheme", "fp32", "--form", form, "-o", str(path)]) == 0
    assert json.loads(path.with_suffix(".json").read_text())["weight_encoding"] is None


@pytest.mark.parametrize(
    ("flags", "encoding", "dtype"),
    [
        ([], SIGNED, np.int8),
        (["--weight-encoding", SIGNED], SIGNED, np.int8),
        (["--weight-encoding", UNSIGNED], UNSIGNED, np.uint8),
    ],
)
@pytest.mark.parametrize("scheme", ["int8", "int8-static"])
def test_the_standard_form_has_signed_weights_unless_others_are_asked_for(
    run: RunDirectory, scheme: str, flags: list[str], encoding: str, dtype: type, tmp_path: Path
) -> None:
    path = tmp_path / "policy.onnx"
    assert export.run([str(run.root), "--form", "standard", "--scheme", scheme, *flags, "-o", str(path)]) == 0
    assert json.loads(path.with_suffix(".json").read_text())["weight_encoding"] == encoding
    tensors = [numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer]
    assert {each.dtype.type for each in tensors if each.ndim == 2 and each.dtype.itemsize == 1} == {dtype}


def test_continuous_actions_have_the_shape_and_type_of_the_environment(tmp_path: Path) -> None:
    graph: PolicyGraph = resigned(d4pg(), spans=(2.0,) * ACTIONS)
    run = stored_run(tmp_path / "run", graph, [checkpoint(graph, 1)], spec=CONTINUOUS)
    policy = actorq.load_policy(run.root)
    rows = random_observations(4)["observation"]
    actions = policy.predict(rows)
    assert (actions.shape, actions.dtype) == ((4, ACTIONS), np.float32)
    single = policy.predict(rows[1])
    assert (single.shape, single.dtype) == ((ACTIONS,), np.float32)
    # Rows of a batch share activation ranges in int8.
    np.testing.assert_allclose(single, actions[1], atol=0.05)


@pytest.mark.parametrize(
    ("observation", "fact"),
    [
        (np.zeros(3), r"\[5\] .*\[B, 5\], .*\[3\]"),
        (np.zeros((0, OBSERVATION_SIZE)), r"\[0, 5\]"),
        (1.0, r"\[\]"),
        (np.zeros(OBSERVATION_SIZE, complex), "float32, .*complex128"),
        (["a"] * OBSERVATION_SIZE, "float32, .*<U1"),
        (None, "numbers, got NoneType"),
        ([[0.0] * OBSERVATION_SIZE, [0.0]], "rows of different lengths"),
        ([[0.0] * OBSERVATION_SIZE, [np.nan] * OBSERVATION_SIZE], "NaN .*row 1"),
        ([np.inf] * OBSERVATION_SIZE, r"1e\+09.*row 0"),
        (np.full(OBSERVATION_SIZE, 1e30), r"1e\+09.*row 0"),
    ],
)
def test_an_observation_that_does_not_fit_is_refused(run: RunDirectory, observation: Any, fact: str) -> None:
    with pytest.raises(InvalidInputError, match=f"observation: .*{fact}"):
        actorq.load_policy(run.root).predict(observation)


def test_a_policy_that_cannot_be_loaded_gives_one_line(run: RunDirectory, command: Exit, tmp_path: Path) -> None:
    def told(*given: Any, **chosen: Any) -> str:
        with pytest.raises(UserError) as caught:
            actorq.load_policy(*given, **chosen)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert re.search(f"version 9 .*actorq policies {run.root}", told(run.root, version=9))
    assert re.search("version 3 .*--version 3 --scheme int4", told(run.root, version="newest", scheme="int4"))
    assert told(tmp_path / "no.onnx").startswith(f"{tmp_path / 'no.onnx'}: ")
    assert command(run.root)[0] == 0
    assert "one version" in told("policy.onnx", version=1)
    Path("policy.onnx").write_bytes(b"changed")
    assert "policy.json describes" in told("policy.onnx")
    Path("policy.json").write_text(json.dumps(description() | {"format": 2}))
    assert re.search("format 1, .*2", told("policy.onnx"))
    Path("policy.json").write_text(json.dumps(description() | {"format": 1, "contract": 4}))
    assert re.match(r"policy\.onnx .*contract 4", told("policy.onnx"))
    Path("policy.json").write_text("[]")
    assert re.match(r"policy\.json: .*actorq export", told("policy.onnx"))
    Path("policy.json").unlink()
    assert re.match(r"policy\.onnx: .*policy\.json beside it; actorq export", told("policy.onnx"))


def test_a_damaged_signature_is_reported_when_the_policy_is_loaded(run: RunDirectory, command: Exit) -> None:
    assert command(run.root)[0] == 0
    model = onnx.load("policy.onnx")
    next(each for each in model.metadata_props if each.key == METADATA).value = "{"
    onnx.save(model, "policy.onnx")
    digest = hashlib.sha256(Path("policy.onnx").read_bytes()).hexdigest()
    Path("policy.json").write_text(json.dumps(description() | {"sha256": digest}))
    with pytest.raises(UserError, match=r"^policy\.onnx: signature"):
        actorq.load_policy("policy.onnx")


def test_a_scheme_that_the_gate_refused_is_not_written(refused: RunDirectory, command: Exit) -> None:
    code, out, err = command(refused.root)
    assert (code, out, err.count("\n")) == (7, "", 1)
    assert re.match("error: version 1: .*int8 .*same action .*--scheme fp32.*--force", err)
    assert list(Path().iterdir()) == []
    assert command(refused.root, "--scheme", "fp32")[::2] == (0, "")


@pytest.mark.parametrize("form", ["onnxruntime", "standard"])
def test_force_writes_a_refused_policy_with_a_warning(refused: RunDirectory, command: Exit, form: str) -> None:
    code, _, err = command(refused.root, "--force", "--form", form)
    assert code == 0
    assert re.fullmatch("warning: .*int8.*--force\n", err)
    told = description()
    assert (told["scheme"], told["effective_scheme"], told["fidelity"]["passed"]) == ("int8", "int8", False)
    assert told["fidelity"]["argmax_agreement"] < 0.95
    assert actorq.load_policy("policy.onnx").scheme == "int8"


def test_the_refusal_of_a_policy_with_a_distribution_has_its_divergence(tmp_path: Path, command: Exit) -> None:
    graph = categorical()
    parameters = random_parameters(graph, 1)
    # Behind the Tanh all but one unit of the hidden layer are rounded to 0.
    parameters["2.weight"][:, 0] = 1e5
    parameters["0.weight"][0] = 1e-6
    parameters["0.bias"][0] = 0.0
    root = stored_run(tmp_path / "stored", graph, [checkpoint(graph, 1, parameters=parameters)]).root
    code, out, err = command(root)
    assert (code, out) == (7, "")
    assert re.match(r"error: version 1: .*int8 .*KL .*mean 0\.", err)
    assert command(root, "--scheme", "fp32")[0] == 0
    fidelity = description()["fidelity"]
    assert 0 <= fidelity["mean_kl"] <= fidelity["max_kl"] < 1e-6


def test_output_that_cannot_be_written_is_one_line(run: RunDirectory, tmp_path: Path) -> None:
    arguments = [
        sys.executable,
        "-m",
        "actorq_apps.cli.main",
        "export",
        str(run.root),
        "--output",
        str(tmp_path / "policy.onnx"),
    ]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch("error: .*No space left on device\n", done.stderr)


def test_nothing_is_replaced_without_force(run: RunDirectory, command: Exit) -> None:
    Path("policy.json").write_text("mine")
    assert re.match(r"--output: policy\.json .*--force", mistake(command, run.root))
    assert command(run.root, "--force")[::2] == (0, "")
    assert mistake(command, run.root).startswith("--output: policy.onnx ")


def test_mistakes_give_one_line_and_write_nothing(run: RunDirectory, command: Exit, tmp_path: Path) -> None:
    standard = ("--scheme", "int4", "--form", "standard", "--opset", "17")
    for arguments, fact in (
        (("--version", "9"), f"version 9 .*{run.root}.*actorq policies {run.root}"),
        (("--version", "last"), "version.*best, newest"),
        (("--scheme", "auto"), "scheme.*fp32, "),
        (("--opset", "17"), "--form standard"),
        (standard, r"opset 17, which lacks its operators; choose one from 21 to \d+$"),
        ((*standard[:-1], "5"), "opset 5, .*choose one from 21 "),
        ((*standard[:-1], "999"), r"at most \d+, .*got 999$"),
        (("-o", "policy.bin"), r"--output: .*\.onnx, .*policy\.bin"),
        (("-o", "no/policy.onnx"), "--output: .*folder no$"),
    ):
        assert re.search(fact, mistake(command, run.root, *arguments))
    assert "directory no " in mistake(command, "no")
    empty = RunDirectory(tmp_path / "empty")
    empty.create(RunConfig())
    assert re.search(f"{empty.policies} .*no policies", mistake(command, empty.root))
