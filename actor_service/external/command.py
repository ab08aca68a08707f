"""`actorq external check`: checks the client of a simulator."""

import asyncio
import sys
from collections.abc import Sequence

from actor_service.external.assembly import add_service
from actor_service.external.check import ClientCheck, Finding
from actor_service.external.streams.door import Door
from actorq.config.parser import OneLineParser, number
from actorq.config.sections import ExternalConfig
from actorq.errors import UserError
from actorq.process import EXIT_FAILED, EXIT_OK
from actorq.transport.addresses import is_loopback, split_address
from actorq.transport.server import Server

_DESCRIPTION = """Listen at ADDRESS like an actor, and check the client that connects: its spaces, its steps, the ends
of its episodes, whether it connects again after a broken stream, and whether it stays away after the end of the run.
Actions are random, and there is no learner. Exit codes: 0, 1 for a client that breaks a rule, 2 for wrong input."""
_GRACE_S = 2.0


def command() -> int:
    """Check the client that connects to the address on the command line."""
    return run(sys.argv[1:])


def run(arguments: Sequence[str]) -> int:
    """Check a client, and print the findings. Returns the exit code."""
    parser = OneLineParser(
        prog="actorq external", usage="actorq external check ADDRESS [flags]", description=_DESCRIPTION
    )
    parser.add_argument("task", choices=("check",), metavar="check", help="check the client of a simulator")
    parser.add_argument("address", metavar="ADDRESS", help="HOST:PORT to listen at, such as 127.0.0.1:50053")
    steps = number(20, 10_000_000, "20 to 10,000,000 steps", int)
    parser.add_argument("--steps", type=steps, default=500, metavar="N", help="steps to play (default: 500)")
    seconds = number(0.1, 3_600.0, "0.1 to 3,600 seconds", float)
    parser.add_argument(
        "--wait-s", type=seconds, default=60.0, metavar="X", help="seconds to wait for each message (default: 60)"
    )
    given = parser.parse_args(arguments)
    host, _ = split_address("ADDRESS", given.address)
    if not is_loopback(host):
        raise UserError(f"ADDRESS: expected an address of this machine such as 127.0.0.1:50053, got {given.address}")
    findings = asyncio.run(_check(given.address, given.steps, given.wait_s))
    return EXIT_FAILED if any(each.passed is False for each in findings) else EXIT_OK


async def _check(address: str, steps: int, wait_s: float) -> list[Finding]:
    server = Server(address)
    server.bind()
    door = Door(ExternalConfig(batch_wait_ms=0.0, timeout_s=wait_s))
    bound = await server.start([add_service(door, server.grpc_server)])
    sys.stdout.write(f"connect the client to {bound}\n")
    sys.stdout.flush()
    check = ClientCheck(door, steps, wait_s)
    findings: list[Finding] = []

    def collect() -> None:
        for finding in check.run():
            findings.append(finding)
            sys.stdout.write(f"{finding}\n")
            sys.stdout.flush()

    try:
        await asyncio.to_thread(collect)
    finally:
        door.end(None)
        await server.stop(_GRACE_S)
    return findings
