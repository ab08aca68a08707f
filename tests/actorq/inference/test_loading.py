"""Files that are no exported policies are refused with the file that is missing."""

from pathlib import Path

import pytest

from actorq import load_policy
from actorq.errors import UserError


def test_a_model_without_a_description_names_the_command_that_writes_both(tmp_path: Path) -> None:
    (tmp_path / "quantized.onnx").write_bytes(b"model")
    with pytest.raises(UserError, match=r"its description quantized\.json beside it; actorq export writes both"):
        load_policy(tmp_path / "quantized.onnx")


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"policy\.onnx: cannot be read \(No such file or directory\)"):
        load_policy(tmp_path / "policy.onnx")
