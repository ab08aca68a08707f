"""Draws the pictures of the documentation from the stored results: `python -m benchmarks.pictures [NAME ...]`.

Each picture has a light and a dark version in docs/images. Both files keep the digest of their results, so a test can
tell a picture that is older than its results.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from benchmarks.libraries.parity import OURS, THEIRS
from benchmarks.libraries.parity_plot import plot as plot_parity
from benchmarks.libraries.peers.__main__ import TASKS as PEERS_TASKS
from benchmarks.libraries.peers.plot import plot as plot_peers
from benchmarks.onpolicy.ppo_plot import plot as plot_ppo
from benchmarks.policy.fidelity import MAX_MEAN_ERROR, MIN_AGREEMENT
from benchmarks.policy.fidelity_plot import plot as plot_fidelity
from benchmarks.policy.figures import Bytes, Calls, Cell, Figures
from benchmarks.policy.inference_plot import plot as plot_inference
from benchmarks.policy.sparse_policy import BOUNDS
from benchmarks.policy.sparse_policy_plot import plot as plot_sparse_policy
from benchmarks.policy.swap import BASELINES, DEFAULT_SCHEME
from benchmarks.policy.swap_plot import plot as plot_swap
from benchmarks.profile_plot import plot as plot_profiles
from benchmarks.scale.fanout_plot import plot as plot_fanout
from benchmarks.scale.scaling import HALF_S, simulate
from benchmarks.scale.scaling_plot import plot as plot_scaling
from benchmarks.speedup.actorq_plot import plot as plot_speedup
from benchmarks.training.cartpole_plot import plot as plot_cartpole
from benchmarks.training.returns import scores as scores_of_returns
from benchmarks.training.returns_plot import plot as plot_returns
from benchmarks.training.rlx2_plot import plot as plot_rlx2
from benchmarks.training.rlx2_plot import plot_profile as plot_rlx2_profile
from benchmarks.training.rlx2_tasks import TASKS as RLX2_TASKS
from benchmarks.training.zoo.plot import plot as plot_zoo
from benchmarks.training.zoo.settings import RESULTS as OF_SETTINGS
from benchmarks.training.zoo.settings import settings_of

_ROOT = Path(__file__).parents[1]
IMAGES = _ROOT / "docs" / "images"
_RESULTS = _ROOT / "benchmarks" / "results"
_FANOUT = ("direct", "relayed", "bare_streams", "plain_stream")
# Simulated numbers of actors that fit next to each other.
_SCALING = (10, 1_000)
# The results of the page of returns, from the oldest to the newest, and the highest score of their profile.
_OF_RETURNS = tuple(name for name in OF_SETTINGS if name.startswith("returns"))
_HIGHEST_OF_RETURNS = 1.2

Content = dict[str, Any]


class OtherSimulationError(Exception):
    """The present simulation gives other figures than the stored result."""


@dataclass(frozen=True)
class Picture:
    """The stored results that a picture shows, and a function that draws their figures.

    paint: takes the figures of each result, and `file` and `source` by name.
    """

    results: tuple[str, ...]
    paint: Callable[..., None]

    @property
    def source(self) -> str:
        """The names of the results and a digest of their content."""
        files = [_RESULTS / f"{name}.json" for name in self.results]
        digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
        return f"{', '.join(self.results)}, SHA-256 {digest}"

    def draw(self, file: Path) -> None:
        """Write both versions."""
        stored = [json.loads((_RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in self.results]
        self.paint(*(each["figures"] for each in stored), file=file, source=self.source)


def _speedup(figures: Content, measure: str = "time_to_target", **of_file: Any) -> None:
    plot_speedup(figures["tasks"], measure=measure, **of_file)


def _of_runs(plot: Callable[..., None], figures: Content, **of_file: Any) -> None:
    plot(figures["runs"], **of_file)


def _returns(figures: Content, **of_file: Any) -> None:
    plot_returns(_by_task(figures), **of_file)


def _returns_profile(*of_results: Content, **of_file: Any) -> None:
    """of_results: from the oldest to the newest. The newest runs of each task count."""
    newest = {task: runs for figures in of_results for task, runs in _by_task(figures).items()}
    found = scores_of_returns([run for runs in newest.values() for run in runs])
    meaning = "0 for random actions, 1 at the target"
    plot_profiles({f"int8 actors, {len(found)} tasks": found}, meaning, _HIGHEST_OF_RETURNS, **of_file)


def _by_task(figures: Content) -> dict[str, list[Content]]:
    names = dict.fromkeys(run["task"] for run in figures["runs"])
    return {name: [run for run in figures["runs"] if run["task"] == name] for name in names}


def _rlx2(figures: Content, **of_file: Any) -> None:
    runs = _by_task(figures)
    plot_rlx2({task: runs[task.name] for task in RLX2_TASKS if task.name in runs}, **of_file)


def _rlx2_profile(*of_results: Content, **of_file: Any) -> None:
    plot_rlx2_profile([run for figures in of_results for run in figures["runs"]], **of_file)


def _zoo(*of_results: Content, discrete: bool | None = None, **of_file: Any) -> None:
    """discrete: only settings of DQN, or only the others; None for all."""
    found = settings_of(figures["runs"] for figures in of_results)
    plot_zoo(
        {
            setting: found[setting]
            for setting in sorted(found)
            if discrete is None or discrete == (setting.algorithm == "dqn")
        },
        **of_file,
    )


def _peers(*of_results: Content, **of_file: Any) -> None:
    runs = _by_task({"runs": [run for figures in of_results for run in figures["runs"]]})
    plot_peers({task: runs[task.name] for task in PEERS_TASKS if task.name in runs}, **of_file)


def _parity(figures: Content, **of_file: Any) -> None:
    sides = {
        task: {side: [run for run in runs if run["side"] == side] for side in (OURS, THEIRS)}
        for task, runs in _by_task(figures).items()
    }
    plot_parity(sides, **of_file)


def _fidelity(figures: Content, **of_file: Any) -> None:
    policies = TypeAdapter(dict[str, dict[str, Figures]]).validate_python(figures["policies"])
    plot_fidelity(policies, MIN_AGREEMENT, MAX_MEAN_ERROR, **of_file)


def _inference(figures: Content, **of_file: Any) -> None:
    plot_inference(TypeAdapter(list[Cell]).validate_python(figures["cells"]), **of_file)


def _sparse_policy(figures: Content, **of_file: Any) -> None:
    sizes = TypeAdapter(list[Bytes]).validate_python(figures["bytes"])
    calls = TypeAdapter(list[Calls]).validate_python(figures["calls"])
    plot_sparse_policy(sizes, calls, BOUNDS, **of_file)


def _swap(figures: Content, **of_file: Any) -> None:
    widths = {int(width): paths for width, paths in figures["widths"].items()}
    plot_swap(widths, (f"actorq {DEFAULT_SCHEME}", *BASELINES), **of_file)


def _fanout(figures: Content, **of_file: Any) -> None:
    plot_fanout({name: figures[name]["all_ms"] for name in _FANOUT}, figures["subscribers"], **of_file)


def _scaling(figures: Content, **of_file: Any) -> None:
    """The result has no traces. The simulation computes them again, unless the result has another version."""
    traces = {}
    for needed in _SCALING:
        traces[needed], phases = simulate(needed, HALF_S)
        if [asdict(phase) for phase in phases] != figures[str(needed)]:
            raise OtherSimulationError("the simulation differs from the stored result: run benchmarks.scale.scaling")
    plot_scaling(traces, **of_file)


PICTURES = {
    "cartpole": Picture(("cartpole",), partial(_of_runs, plot_cartpole)),
    "fanout": Picture(("fanout",), _fanout),
    "fidelity": Picture(("fidelity",), _fidelity),
    "inference": Picture(("inference",), _inference),
    "on-policy": Picture(("on_policy_ppo",), partial(_of_runs, plot_ppo)),
    "on-policy-wide": Picture(("on_policy_wide",), _speedup),
    "parity": Picture(("parity",), _parity),
    "peers": Picture(("peers",), _peers),
    "peers-continuous": Picture(("peers_continuous",), _peers),
    "peers-hopper": Picture(("peers_hopper",), _peers),
    "peers-memory": Picture(("peers_memory",), _peers),
    "peers-off-policy": Picture(("peers_off_policy",), _peers),
    "returns": Picture(("returns",), _returns),
    "returns_profile": Picture(_OF_RETURNS, _returns_profile),
    "rlx2": Picture(("rlx2",), _rlx2),
    "rlx2_ant": Picture(("rlx2_ant",), _rlx2),
    "rlx2_half_cheetah": Picture(("rlx2_half_cheetah",), _rlx2),
    "rlx2_hopper": Picture(("rlx2_hopper",), _rlx2),
    "rlx2_profile": Picture(("rlx2_hopper", "rlx2_walker2d", "rlx2_ant", "rlx2_sac_hopper"), _rlx2_profile),
    "rlx2_sac_half_cheetah": Picture(("rlx2_sac_half_cheetah",), _rlx2),
    "rlx2_sac_hopper": Picture(("rlx2_sac_hopper",), _rlx2),
    "rlx2_walker2d": Picture(("rlx2_walker2d",), _rlx2),
    "scaling": Picture(("scaling",), _scaling),
    "sparse-policy": Picture(("sparse_policy",), _sparse_policy),
    "speedup": Picture(("actorq",), _speedup),
    "speedup_steps": Picture(("actorq_steps",), partial(_speedup, measure="throughput")),
    "swap": Picture(("swap",), _swap),
    "zoo": Picture(("zoo",), _zoo),
    "zoo-continuous": Picture(OF_SETTINGS, partial(_zoo, discrete=False)),
    "zoo-discrete": Picture(OF_SETTINGS, partial(_zoo, discrete=True)),
}


def main() -> int:
    """Draw all pictures, or some."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pictures", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="pictures to draw, such as speedup (default: all)")
    names = parser.parse_args().names or list(PICTURES)
    if unknown := sorted(set(names) - PICTURES.keys()):
        parser.error(f"expected names of pictures, got {', '.join(unknown)}: take some of {', '.join(PICTURES)}")
    failed = 0
    for name in names:
        try:
            PICTURES[name].draw(IMAGES / f"{name}.png")
        except OtherSimulationError as error:
            failed = 1
            print(f"error: {name}: {error}", file=sys.stderr)
        else:
            print(IMAGES / f"{name}.png", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
