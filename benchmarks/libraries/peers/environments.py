"""Virtual environments of the libraries in benchmarks.libraries.peers: with pinned versions, made once, then kept."""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

_REQUIREMENTS = Path(__file__).parents[1] / "peer_runs"
_INSTALL_S = 1800.0


def requirements(peer: str) -> Path:
    """The file that pins a library and its dependencies."""
    return _REQUIREMENTS / f"{peer}.txt"


def pins(peer: str) -> str:
    """A digest of the pinned versions. Environments and runs of other versions have another digest."""
    return hashlib.sha256(_contents(requirements(peer))).hexdigest()[:12]


def python_of(peer: str, folder: Path, run: Callable[[list[str]], None] | None = None) -> Path:
    """The interpreter of a library's environment in `folder`. Makes the environment if it does not exist.

    run: runs a command; a parameter for tests. Raises SystemExit if the library cannot be installed.
    """
    environment = folder / f"{peer}-{pins(peer)}"
    python, installed = environment / "bin" / "python", environment / "installed"
    if not installed.exists():
        print(f"{peer}: installing into {environment}", flush=True)
        shutil.rmtree(environment, ignore_errors=True)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SystemExit(f"--environments: {folder} cannot be made ({error.strerror})") from None
        for command in (
            [sys.executable, "-m", "venv", str(environment)],
            [str(python), "-m", "pip", "install", "--quiet", "--requirement", str(requirements(peer))],
        ):
            (run or _run)(command)
        installed.touch()
    return python


def _contents(file: Path) -> bytes:
    """The bytes of a file of pins, and of the files that it includes."""
    content = file.read_bytes()
    included = (line.removeprefix(b"-r ") for line in content.splitlines() if line.startswith(b"-r "))
    return content + b"".join(_contents(file.with_name(name.decode())) for name in included)


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=_INSTALL_S)
    except (OSError, subprocess.SubprocessError) as error:
        lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
        raise SystemExit(f"--environments: {' '.join(command)} failed: {lines[-1] if lines else error}") from None
