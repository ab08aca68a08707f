"""`actorq quantize`: its output, its files, and the settings that it refuses in one line."""

import re
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from actorq.domain.policy import SCHEMES, WEIGHT_ENCODINGS, PolicyGraph
from actorq.process import main
from actorq.weightencoding import weight_encoding_of
from quantizer_service.command import command
from quantizer_service.command.model_files import MAX_FILE_BYTES
from quantizer_service.emission.divergence import divergence
from tests.builders.processors import INT8_HERE
from tests.quantizer_service.complete_models import chosen_actions, complete_model, written
from tests.quantizer_service.policy_graphs import OBSERVATION_SIZE, categorical, gaussian, mlp, recurrent, two_inputs
from tests.quantizer_service.policy_runs import all_outputs_of, outputs_of


@dataclass(frozen=True)
class Compared:
    """A finished command: its output, and the files that it read and wrote."""

    printed: str
    model: Path
    output: Path

    def row(self, scheme: str) -> list[str]:
        """The cells of a scheme, without the mark of the chosen one."""
        lines = [line.removeprefix("*").split() for line in self.printed.splitlines()]
        return next(cells for cells in lines if cells and cells[0] == scheme)

    @property
    def marked(self) -> str:
        """The scheme that was chosen."""
        (line,) = [line for line in self.printed.splitlines() if line.startswith("*")]
        return line.split()[1]


def observations(rows: int = 64) -> NDArray[Any]:
    return np.random.default_rng(3).standard_normal((rows, OBSERVATION_SIZE)).astype(np.float32)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """int8 of a small policy, calibrated and written."""
    folder = tmp_path_factory.mktemp("quantize")
    model = written(folder / "policy.onnx", complete_model(mlp(32, 32, 32)))
    np.savez(folder / "observations.npz", observations())
    output = folder / "out.onnx"
    given = ["--scheme", "int8", "--calibration", str(folder / "observations.npz"), "-o", str(output)]
    with redirect_stdout(StringIO()) as printed:
        assert command.run([str(model), *given, "--discrete-actions"]) == 0
    return Compared(printed.getvalue(), model, output)


def test_the_table_has_a_row_for_each_scheme(compared: Compared) -> None:
    header = compared.printed.splitlines()[0]
    for column in (
        "scheme",
        "bytes",
        "us, batch 1",
        "us, batch 32",
        "mean error",
        "max error",
        "agreement",
        "value loss",
        "gate",
    ):
        assert column in header
    for scheme in SCHEMES:
        size, first, last = (float(cell.replace(",", "")) for cell in compared.row(scheme)[1:4])
        assert size > 0
        assert first > 0
        assert last > 0
    assert compared.row("fp32")[4:] == ["0.00%", "0.00%", "100.0%", "0.00%", "4", "of", "4", "passed"]
    assert float(compared.row("int8")[4].removesuffix("%")) > 0
    assert compared.row("int8")[8:] == ["2", "of", "4", "passed"]
    assert re.search(r"int8: .*layers\.0 .*layers\.3 ", compared.printed)
    assert re.search(f" 64 observations .*{compared.model.parent / 'observations.npz'}", compared.printed)


def test_the_chosen_scheme_is_marked_and_written(compared: Compared) -> None:
    assert compared.marked == "int8"
    model = compared.output.read_bytes()
    assert re.search(f"{compared.output}: int8 .*{INT8_HERE.weight_encoding} .*{len(model):,} bytes", compared.printed)
    onnx.checker.check_model(onnx.ModelProto.FromString(model))
    feeds = {"observation": observations(8)}
    of_file, of_original = outputs_of(model, feeds), outputs_of(compared.model.read_bytes(), feeds)
    assert 0 < np.abs(of_file - of_original).max() < 0.1
    assert not list(compared.output.parent.glob(".*"))


def test_layers_in_float_are_stored_as_integers_by_default(compared: Compared, tmp_path: Path) -> None:
    given = [str(compared.model), "--scheme", "int8", "--discrete-actions", "-o", str(tmp_path / "floats.onnx")]
    assert command.run([*given, "--no-int8-storage"]) == 0
    kept, stored = (onnx.load(path).graph.initializer for path in (tmp_path / "floats.onnx", compared.output))
    in_float = {each.name for each in kept if each.data_type == onnx.TensorProto.FLOAT and len(each.dims) == 2}
    assert len(in_float) == 2
    assert {f"{name}:stored" for name in in_float} < {each.name for each in stored}


def test_the_output_names_the_choice_of_auto_and_random_observations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = written(tmp_path / "policy.onnx", complete_model(two_inputs()))
    assert command.run([str(model), "--batch", "4", "--output", str(tmp_path / "out.onnx"), "--seed", "5"]) == 0
    printed = capsys.readouterr().out
    result = Compared(printed, model, tmp_path / "out.onnx")
    assert "us, batch 4" in printed
    assert "agreement" not in printed.splitlines()[0]
    assert "256 random" in printed
    assert "seed 5" in printed
    assert re.search(f"auto .*{result.marked} .*batch 4", printed)
    inputs = [value.name for value in onnx.load(result.output).graph.input]
    assert inputs == [value.name for value in onnx.load(model).graph.input]


def test_a_scheme_that_the_gate_refuses_is_written_with_force_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = written(tmp_path / "policy.onnx", complete_model(mlp(32, 32)))
    output = tmp_path / "out.onnx"
    strict = [str(model), "--gate.max-mean-error", "1e-9", "--scheme", "int4", "-o", str(output)]
    assert command.run(strict) == 7
    printed = capsys.readouterr()
    assert re.search("refused, .*fp32", printed.out)
    assert "int4: refused" in printed.out
    (line,) = printed.err.splitlines()
    assert line.startswith("error: int4: ")
    assert not output.exists()
    # The gate's log would repeat this between the lines of the table.
    assert "is refused" not in printed.out
    assert command.run([*strict, "--force"]) == 0
    forced = capsys.readouterr()
    assert f"{output}: int4, " in forced.out
    assert re.fullmatch("warning: .*int4.*--force\n", forced.err)
    # It is the quantized form: smaller than half of the weights in float.
    assert output.stat().st_size < model.stat().st_size / 2


def test_agreement_of_action_indices_is_counted_without_a_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = written(tmp_path / "policy.onnx", chosen_actions(mlp(32, 32)))
    np.savez(tmp_path / "observations.npz", observations(2000))
    output, calibration = tmp_path / "out.onnx", ["--calibration", str(tmp_path / "observations.npz")]
    assert (
        command.run([str(model), "--scheme", "int4", "--gate.min-agreement", "0", "-o", str(output), *calibration]) == 0
    )
    printed = capsys.readouterr().out
    feeds = {"observation": observations(2000)}
    agreement = np.mean(outputs_of(output.read_bytes(), feeds) == outputs_of(model.read_bytes(), feeds))
    assert 0.5 < agreement < 1
    assert Compared(printed, model, output).row("int4")[6] == f"{agreement:.1%}"


@pytest.mark.parametrize("source", [categorical(), gaussian()], ids=["logits", "mean and log_std"])
def test_the_divergence_of_a_foreign_policy_is_shown_and_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: PolicyGraph
) -> None:
    complete = complete_model(source)
    model, output = written(tmp_path / "policy.onnx", complete), tmp_path / "out.onnx"
    np.savez(tmp_path / "observations.npz", observations())
    calibration = str(tmp_path / "observations.npz")
    given = [str(model), "--scheme", "int8", "--batch", "64", "--calibration", calibration]
    assert command.run([*given, "-o", str(output)]) == 0
    printed = capsys.readouterr().out
    assert re.search("mean KL +max KL +in float", printed.splitlines()[0])
    feeds = {"observation": observations()}
    names = [value.name for value in complete.graph.output]
    expected, emitted = (
        {name: array.astype(np.float64) for name, array in zip(names, all_outputs_of(each, feeds), strict=True)}
        for each in (complete.SerializeToString(), output.read_bytes())
    )
    rows = divergence(expected, emitted, source.signature)
    assert rows is not None
    row = " ".join(Compared(printed, model, output).row("int8"))
    assert f"{rows.mean():.1e} {rows.max():.1e}" in row
    assert command.run([*given, "--gate.max-mean-kl", "1e-12"]) == 7
    assert f", mean KL {rows.mean():.2g}, max KL {rows.max():.2g}\n" in capsys.readouterr().out


@pytest.mark.parametrize("operator", ["LSTM", "GRU"])
def test_recurrent_weights_are_quantized_or_the_summary_reports_no_gain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], operator: str
) -> None:
    model = written(tmp_path / "policy.onnx", complete_model(recurrent(operator)))
    output = tmp_path / "out.onnx"
    assert command.run([str(model), "--scheme", "int8-weights", "--gate.min-agreement", "0", "-o", str(output)]) == 0
    printed = capsys.readouterr().out
    assert output.stat().st_size < 0.35 * model.stat().st_size
    assert "int8-weights: nothing is gained" not in printed
    assert re.search("int4: nothing is gained .*no layer", printed)
    assert re.search(r"w \(.*int8-weights and int8 ", printed)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line with which it ends; nothing else is printed."""
    assert main(lambda: command.run([str(argument) for argument in arguments])) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


def changed(model: onnx.ModelProto, change: str) -> onnx.ModelProto:
    """The model with a fault."""
    first = model.graph.initializer[0]
    if change == "NaN":
        array = numpy_helper.to_array(first).copy()
        array.flat[1] = np.nan
        first.CopyFrom(numpy_helper.from_array(array, first.name))
    elif change == "operator":
        model.graph.node[1].op_type = "Frobnicate"
    elif change == "dynamic":
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "size"
    elif change == "old":
        model.opset_import[0].version = 1
    elif change == "baked":
        (first_node, *_) = model.graph.node
        model.graph.initializer.append(numpy_helper.from_array(np.array([1, OBSERVATION_SIZE]), "shape"))
        model.graph.node.insert(0, helper.make_node("Reshape", [first_node.input[0], "shape"], ["reshaped"]))
        model.graph.node[1].input[0] = "reshaped"
    elif change == "half":
        first.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(first).astype(np.float16), first.name))
    elif change == "empty":
        model.graph.ClearField("node")
    else:
        first.ClearField("raw_data")
        first.data_location = onnx.TensorProto.EXTERNAL
        entries = {"location": change} if change != "claim" else {"location": "weights", "length": str(5 << 30)}
        first.external_data.extend(onnx.StringStringEntryProto(key=key, value=value) for key, value in entries.items())
    return model


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ("NaN", r"'layers\.0\.weight': .*1 NaN"),
        ("operator", "Frobnicate"),
        ("dynamic", r"'observation' .*\['size'\]"),
        ("old", "opset 1 to 13"),
        ("baked", "Reshape .*dynamic_shapes"),
        ("half", r"float32: .*policy\.float\(\)"),
        ("empty", "without a graph"),
        ("nowhere", "weights in another file"),
        ("../elsewhere", "weights in another file"),
        ("claim", "1024 MiB, .*5,368,709,120 bytes"),
    ],
)
def test_a_bad_model_is_refused_in_a_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, fact: str
) -> None:
    model = written(tmp_path / "policy.onnx", changed(complete_model(mlp(8, 8)), change))
    line = refusal(capsys, model, "-o", tmp_path / "out.onnx")
    assert re.match(f"{model}: .*{fact}", line)
    assert {path.name for path in tmp_path.iterdir()} == {"policy.onnx"}


@pytest.mark.parametrize("batch", [1, "batch"])
def test_states_that_are_not_batch_first_get_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], batch: int | str
) -> None:
    model = complete_model(recurrent())
    for node in model.graph.node:
        if node.op_type == "Transpose":
            node.op_type = "Identity"
            node.ClearField("attribute")
    for value in (*model.graph.input, *model.graph.output):
        shape = [batch, *(dim.dim_value for dim in value.type.tensor_type.shape.dim[1:])]
        shape = [1, batch, shape[2]] if len(shape) == 3 else shape
        value.CopyFrom(helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, shape))
    line = refusal(capsys, written(tmp_path / "policy.onnx", model))
    assert re.search(r"\[B, layers, H\].*state\.transpose\(0, 1\)", line)


def test_a_file_that_is_not_a_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    garbage = tmp_path / "garbage.onnx"
    garbage.write_bytes(b"no protobuf at all")
    assert re.match(f"{garbage}: .*18 bytes", refusal(capsys, garbage))
    assert re.match(f"{tmp_path}/absent.onnx.*No such file or directory", refusal(capsys, tmp_path / "absent.onnx"))
    assert re.match(f"{tmp_path}.*Is a directory", refusal(capsys, tmp_path))
    with (tmp_path / "huge.onnx").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    assert "1024 MiB" in refusal(capsys, tmp_path / "huge.onnx")


def test_weights_in_a_file_beside_the_model_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = complete_model(mlp(16, 16))
    feeds = {"observation": observations(4)}
    expected = outputs_of(model.SerializeToString(), feeds)
    onnx.save_model(model, tmp_path / "policy.onnx", save_as_external_data=True, size_threshold=0)
    assert command.run([str(tmp_path / "policy.onnx"), "--scheme", "fp32", "-o", str(tmp_path / "out.onnx")]) == 0
    assert "* fp32" in capsys.readouterr().out
    np.testing.assert_allclose(outputs_of((tmp_path / "out.onnx").read_bytes(), feeds), expected, rtol=1e-6)


INFINITE = np.full((4, OBSERVATION_SIZE), np.inf, np.float32)


@pytest.mark.parametrize(
    ("arrays", "fact"),
    [
        ({"observation": observations()[:, :3]}, r"'observation': .*\['B', 5\], .*\[64, 3\]"),
        ({"observation": observations().astype(np.float64)}, "'observation': .*float32.*float64"),
        ({"observation": INFINITE}, "'observation': .*finite"),
        ({"observation": observations(0)}, r"rows.*\[0\]"),
        ({"a": observations(), "b": observations()}, r"\['observation'\], .*\['a', 'b'\]"),
        ({"a": np.array([{}], dtype=object)}, r"plain arrays .*numpy\.savez"),
        ({}, r"missing \['observation'\]"),
    ],
    ids=["shape", "dtype", "infinity", "no rows", "names", "objects", "nothing"],
)
def test_bad_observations_are_refused_in_a_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arrays: dict[str, NDArray[Any]],
    fact: str,
) -> None:
    model = written(tmp_path / "policy.onnx", complete_model(mlp(8, 8)))
    np.savez(tmp_path / "observations.npz", **arrays)  # type: ignore[arg-type]
    line = refusal(capsys, model, "--calibration", tmp_path / "observations.npz")
    assert re.match(f"{tmp_path / 'observations.npz'}: .*{fact}", line)


def test_a_file_that_is_no_npz_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = written(tmp_path / "policy.onnx", complete_model(mlp(8, 8)))
    np.save(tmp_path / "plain.npy", observations())
    assert re.search(r"plain\.npy.*npz", refusal(capsys, model, "--calibration", tmp_path / "plain.npy"))
    assert "absent.npz" in refusal(capsys, model, "--calibration", tmp_path / "absent.npz")


@pytest.mark.parametrize(
    ("save", "old", "new"),
    [(np.savez, b"), }", b" , }"), (np.savez_compressed, b"observation.npy", b"observation.npy" + bytes(20) + b"\xff")],
    ids=["header", "compressed data"],
)
def test_a_damaged_npz_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], save: Callable[..., None], old: bytes, new: bytes
) -> None:
    model, file = written(tmp_path / "policy.onnx", complete_model(mlp(8, 8))), tmp_path / "observations.npz"
    # Otherwise the checksum of a small file would detect it first.
    save(file, observation=observations(500))
    data = file.read_bytes()
    start = data.index(old)
    file.write_bytes(data[:start] + new + data[start + len(new) :])
    assert re.match(f"{file}: .*plain arrays", refusal(capsys, model, "--calibration", file))


def test_an_existing_output_is_kept_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = written(tmp_path / "policy.onnx", complete_model(mlp(8, 8)))
    before = model.read_bytes()
    assert re.match(f"--output: {model} .*--force", refusal(capsys, model, "-o", model))
    assert model.read_bytes() == before
    assert re.match(f"--output: {tmp_path} .*folder", refusal(capsys, model, "-o", tmp_path))
    assert f"folder {tmp_path}/absent" in refusal(capsys, model, "-o", tmp_path / "absent" / "out.onnx")
    assert command.run([str(model), "--scheme", "int8-weights", "-o", str(model), "--force"]) == 0
    assert model.read_bytes() != before
    assert any(node.op_type == "DequantizeLinear" for node in onnx.load(model).graph.node)


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ((), r"MODEL\.onnx"),
        (("--schem", "int8"), "'--scheme'"),
        (("--scheme", "int3"), "'scheme': .*fp32, "),
        (("--batch", "0"), "'batch': .* 1 to 65,536, got '0'"),
        (("--batch", "3000000000"), "'batch': .* 65,536, got '3000000000'"),
        (("--gate.min-agreement", "2"), r"'gate\.min_agreement': .* 1"),
        (("--action-spans", "2,2"), "action span.* 3 "),
    ],
)
def test_wrong_flags_get_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], fact: str
) -> None:
    model = written(tmp_path / "policy.onnx", complete_model(mlp(8, 8)))
    assert re.search(fact, refusal(capsys, model, *arguments) if arguments else refusal(capsys))


def test_a_batch_that_was_exported_as_one_becomes_free(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = complete_model(mlp(16, 16))
    for value in (*model.graph.input, *model.graph.output):
        shape = value.type.tensor_type.shape
        shape.dim[0].CopyFrom(helper.make_tensor_value_info("x", 1, [1]).type.tensor_type.shape.dim[0])
    assert command.run([str(written(tmp_path / "policy.onnx", model))]) == 0
    assert "us, batch 32" in capsys.readouterr().out


@pytest.mark.parametrize("encoding", WEIGHT_ENCODINGS)
def test_a_policy_is_written_in_the_encoding_for_its_target(encoding: str, tmp_path: Path) -> None:
    path, output = tmp_path / "policy.onnx", tmp_path / "out.onnx"
    path.write_bytes(complete_model(mlp(16, 16)).SerializeToString())
    assert command.run([str(path), "--scheme", "int8", "--weight-encoding", encoding, "-o", str(output)]) == 0
    assert weight_encoding_of(output.read_bytes()) == encoding
