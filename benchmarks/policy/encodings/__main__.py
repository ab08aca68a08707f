"""The cost of a mixed fleet in its quantizer: versions in two weight encodings compared with versions in one.

Some actors of such a fleet have processors with an int8 dot product, and some have not. The quantizer emits each
version once and makes the second encoding from the first. Two quantizers receive the same versions in turn, each with
its own store. One has watchers of one encoding, the other of both. The seconds are those until watchers are served:
validation, quantization, the fidelity gate and the second encoding. Storing comes later and is reported separately.
Both encodings represent the same numbers. Their outputs are therefore equal if the processor computes both exactly.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from actor_service.policies.policy import OnnxPolicy
from actorq.domain.policy import SIGNED, UNSIGNED, WEIGHT_ENCODINGS, Checkpoint, Policy, PolicyGraph, Variant
from benchmarks.harness import Target, run_benchmark
from benchmarks.policies import PolicyNetwork, checkpoint_of, vector_network
from benchmarks.policy.swap_paths import renew
from benchmarks.processor import DOT_PRODUCT
from learner_service.policy.policy_graph import snapshot_parameters
from quantizer_service.emission.emitter import Emitter
from quantizer_service.store.store import PolicyStore

SCHEMES = ("int8", "int8-static")
WIDTHS = (256, 1024, 2048)
BATCHES = (1, 8)
# Seconds of a version in two encodings relative to one encoding.
MOST = 1.3
# The watched encodings of each quantizer.
FLEETS = {"one": (SIGNED,), "two": WEIGHT_ENCODINGS}


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=25, metavar="N", help="versions of each fleet (default: 25)")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    torch.set_num_threads(1)
    widths = {}
    for width in WIDTHS:
        widths[width] = measure(vector_network("mlp", width), arguments.repeats)
        print(_row(width, widths[width]), flush=True)
    return {"repeats": arguments.repeats, "widths": widths}, targets(widths)


def measure(network: PolicyNetwork, repeats: int) -> dict[str, Any]:
    """Figures of one network: seconds by fleet, the median ratio of neighbors, bytes and unequal outputs by scheme."""
    graph, checkpoint = checkpoint_of(network)
    generator = torch.Generator().manual_seed(0)
    seconds: dict[str, list[float]] = {name: [] for name in FLEETS}
    stored: dict[str, list[float]] = {name: [] for name in FLEETS}
    with tempfile.TemporaryDirectory() as folder:
        emitters = {name: _emitter(Path(folder) / name, graph) for name in FLEETS}
        # The first version of each warms up.
        for version in range(1, repeats + 2):
            renew(network.module, generator)
            checkpoint = replace(checkpoint, version=version, parameters=snapshot_parameters(network.module))
            for name in reversed(FLEETS) if version % 2 else FLEETS:
                watched = [Variant("int8", each) for each in FLEETS[name]]
                emission, storing = _publish_seconds(emitters[name], checkpoint, watched)
                seconds[name].append(emission)
                stored[name].append(storing)
        policies = _in_both(emitters["two"], replace(checkpoint, version=repeats + 2))
    timed = {name: found[1:] for name, found in seconds.items()}
    return {
        "seconds": {name: statistics.median(found) for name, found in timed.items()},
        "storing_seconds": {name: statistics.median(found[1:]) for name, found in stored.items()},
        "ratio": statistics.median(two / one for one, two in zip(timed["one"], timed["two"], strict=True)),
        "bytes": {str(variant): policy.descriptor.size_bytes for variant, policy in policies.items()},
        "unequal": {scheme: _unequal(network, policies, scheme) for scheme in SCHEMES},
    }


def _publish_seconds(emitter: Emitter, checkpoint: Checkpoint, watched: Sequence[Variant]) -> tuple[float, float]:
    """Seconds until the version may be served, and seconds of its storing."""
    served: list[float] = []
    started = time.perf_counter()
    emitter.publish(checkpoint, ["int8"], lambda policies: served.append(time.perf_counter()), watched)
    return served[0] - started, time.perf_counter() - served[0]


def targets(widths: Mapping[int, Mapping[str, Any]]) -> list[Target]:
    """Targets: for each width the cost of the second encoding; over all widths, the number of different outputs."""
    found = [
        Target(f"width {width}: seconds of a version in two encodings over those in one", each["ratio"], MOST)
        for width, each in widths.items()
    ]
    unequal = sum(sum(each["unequal"].values()) for each in widths.values())
    return [*found, Target("outputs that differ between both encodings", unequal, 0.0, needs=DOT_PRODUCT)]


def _emitter(folder: Path, graph: PolicyGraph) -> Emitter:
    emitter = Emitter(PolicyStore(folder, retain_newest=2, retain_best=1))
    emitter.catalog.claim("benchmark")
    emitter.add_graph(graph)
    return emitter


def _in_both(emitter: Emitter, checkpoint: Checkpoint) -> dict[Variant, Policy]:
    watched = [Variant(scheme, encoding) for scheme in SCHEMES for encoding in WEIGHT_ENCODINGS]
    return {policy.descriptor.variant: policy for policy in emitter.publish(checkpoint, SCHEMES, watched=watched)}


def _unequal(network: PolicyNetwork, policies: Mapping[Variant, Policy], scheme: str) -> int:
    """The number of outputs that differ between both encodings, to the last bit."""
    found = 0
    for batch in BATCHES:
        signed, unsigned = (
            OnnxPolicy(policies[Variant(scheme, each)], network.spec.observations, batch) for each in (SIGNED, UNSIGNED)
        )
        for start in range(0, len(network.calibration) // batch * batch, batch):
            rows = network.calibration[start : start + batch]
            found += int(np.count_nonzero(signed(rows) != unsigned(rows)))
    return found


def _row(width: int, figures: Mapping[str, Any]) -> str:
    one, two = (1e3 * figures["seconds"][name] for name in FLEETS)
    sizes: Sequence[str] = [f"{name} {size:,}" for name, size in figures["bytes"].items()]
    return (
        f"width {width:5}: one encoding {one:.1f} ms, two {two:.1f} ms ({figures['ratio']:.2f} times); bytes "
        f"{', '.join(sizes)}; unequal outputs {sum(figures['unequal'].values())}"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
