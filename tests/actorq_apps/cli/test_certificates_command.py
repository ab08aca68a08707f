"""`actorq certificates` from a user's view."""

import re
from pathlib import Path

import pytest

from actorq.transport.options import Certificates
from actorq.transport.security.roles import ROLES
from actorq_apps.cli.main import main


def test_the_command_makes_certificates_and_prints_their_folder_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "certificates"
    given = ["certificates", "init", str(directory), "--names", "a.example.org,10.0.0.7", "--days", "7"]
    assert main(given) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.search(f" 7 days.*{', '.join(ROLES)}", lines[0])
    assert lines[1].endswith(f" actorq train --certificates {directory}")
    assert lines[-1] == str(directory)
    assert all(Certificates.of(directory, member) for member in ROLES)


@pytest.mark.parametrize(
    ("given", "fact"),
    [
        ([], "required: init, DIR.*actorq certificates --help"),
        (["init"], "required: DIR.*actorq certificates --help"),
        (["make", "x"], "argument init.*'make'"),
        (["init", "x", "--days", "0"], "'days'.* 1 .*'0'"),
        (["init", "x", "--names", "no name"], "DNS name.*'no name'"),
        (["init", "x", "--namespace", "No"], "'namespace'.*'No'"),
        (["init", "/etc"], "/etc .*overwritten"),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_code_2(
    given: list[str], fact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["certificates", *given]) == 2
    error = capsys.readouterr().err
    assert re.match(f"error: .*{fact}", error)
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
