"""The tasks, the systems and the schemes that the benchmark compares."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """An environment, and the seconds of each run in it."""

    environment: str
    limit_s: float = 600.0

    @property
    def name(self) -> str:
        """The name that the patterns of --task match."""
        return self.environment


@dataclass(frozen=True)
class System:
    """An algorithm with its preset `auto`, and with further flags. change: what the flags change, for the pages."""

    name: str
    algorithm: str
    change: str = "preset"
    flags: tuple[str, ...] = ()


TASKS = (Task("Pendulum-v1", 60.0), Task("HalfCheetah-v5"), Task("Walker2d-v5"))
SAC, XQC = "sac", "xqc"
# Those whose errors are measured.
SCHEMES = ("int8", "int8-static", "int4")
SYSTEMS = (
    System(SAC, "sac"),
    System(XQC, "xqc"),
    System("xqc-policy-of-sac", "xqc", "policy of SAC's size", ("--xqc.policy-sizes=256,256",)),
    System("xqc-no-targets", "xqc", "no target networks", ("--xqc.target-rate=1",)),
    System("xqc-free-rows", "xqc", "rows of any norm", ("--no-xqc.unit-rows",)),
    System("xqc-two-atoms", "xqc", "only the mean of returns", ("--xqc.atoms=2",)),
    System("xqc-no-delay", "xqc", "a policy update for each critic update", ("--xqc.policy-delay=1",)),
)
