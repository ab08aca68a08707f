"""`actorq certificates`, as a user gives it."""

from pathlib import Path

import pytest

from actorq.transport.options import Certificates
from actorq.transport.security.roles import ROLES
from actorq_apps.cli.main import main


def test_it_makes_certificates_and_prints_their_folder_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "certificates"
    given = ["certificates", "init", str(directory), "--names", "a.example.org,10.0.0.7", "--days", "7"]
    assert main(given) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"valid for 7 days: {', '.join(ROLES)}"
    assert lines[1] == f"on this machine: actorq train --certificates {directory}"
    assert lines[-1] == str(directory)
    assert all(Certificates.of(directory, member) for member in ROLES)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([], "the following arguments are required: init, DIR; see actorq certificates --help"),
        (["init"], "the following arguments are required: DIR; see actorq certificates --help"),
        (["make", "x"], "argument init: invalid choice: 'make'"),
        (["init", "x", "--days", "0"], "setting 'days': value should be greater than or equal to 1, got '0'"),
        (["init", "x", "--names", "no name"], "certificates: expected a DNS name or an IP address, got 'no name'"),
        (["init", "x", "--namespace", "No"], "setting 'namespace': String should match pattern"),
        (["init", "/etc"], "/etc exists and would be overwritten"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    given: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["certificates", *given]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {reason}")
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
