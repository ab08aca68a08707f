"""The savings of sparse policies: bytes of an update between the services, and microseconds of an actor's call.

Bytes: policies with the sizes and sparsities of RLx2's TD3 experiments (256-256), emitted by the quantizer. The figures
are the sizes of the serialized messages of WatchPolicies and PublishCheckpoints. The baseline is a dense fp32 policy of
the same sizes. The models are also written in other forms; in the form "mask once" the receiver keeps the mask (see
sparse_policy_bytes.py). The learner's code makes the masks in seconds of regression (sparse_policy_networks.py). Masks
are random (drawn by Erdos-Renyi), trained (RLx2's gradient growth), or structured (constant fan-in and ablated units).

Calls: HalfCheetah's sizes, width 256, in the actor's own session, one thread, all policies in turn. Figures are medians
of the repeats.

Targets: the joint gain of sparsity and int8 over dense fp32, and the gain of int8 over fp32 of the same sparse network.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.policies.policy import OnnxPolicy
from actorq.config.sections import QuantizerConfig
from actorq.domain.policy import FP32, Checkpoint, Policy, PolicyGraph
from actorq.quantization.graph import Graph
from actorq.transport.payload.blobs import ENCODINGS
from benchmarks.harness import Target, run_benchmark
from benchmarks.policies import checkpoint_of, environment_spec, vector_network
from benchmarks.policy.figures import SMALLEST, Bytes, Calls
from benchmarks.policy.inference_timing import tight
from benchmarks.policy.sparse_policy_bytes import Form, forms, mask_once, milliseconds, sizes, values_only
from benchmarks.policy.sparse_policy_networks import MASKS, TASKS, VERSIONS, Task, versions
from learner_service.training.publisher import Snapshot, checkpoint_requests
from quantizer_service.emission.emitter import Emitter
from quantizer_service.emission.prepared_graph import PreparedGraph
from quantizer_service.serving.policy_stream import policy_messages
from quantizer_service.store.policy_files import encode_tensors
from quantizer_service.store.store import PolicyStore

ENDS = ", ends too"
# Bytes of the dense fp32 policy's update divided by those of the sparse policy's, by task.
BOUNDS = {"HalfCheetah": 15.0, "Hopper": 40.0, "Walker2d": 40.0, "Ant": 40.0}
SCHEMES = (FP32, SMALLEST, "int8", "int8-static", f"int8{ENDS}", f"int8-static{ENDS}")
# Relative to fp32 of the same sparse network; slightly below the stored result.
INT8_BYTES = {"HalfCheetah": 2.1, "Hopper": 1.6, "Walker2d": 1.8, "Ant": 1.9}
INT8_CALLS = {0.90: 1.1, 0.96: 1.0}
TIMED_SPARSITIES = (0.90, 0.96)
BATCHES = (1, 32)
SLICE_S = 0.008


@dataclass(frozen=True)
class DenseCost:
    """Medians in milliseconds of CPU time: an int8 emission of a dense policy, and the search for removable units."""

    width: int
    emission: float
    look: float


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=15, metavar="N", help="slices of each call (default: 15)")
    parser.add_argument("--quick", action="store_true", help="only one environment, five versions, three repeats")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw bytes and times to FILE, such as a PNG")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    ways, repeats = forms(), 3 if arguments.quick else arguments.repeats
    count = 5 if arguments.quick else VERSIONS
    found, latency = [], {}
    for task in TASKS[:1] if arguments.quick else TASKS:
        dense = versions(task, "dense")
        for masks in MASKS:
            graph, checkpoints = versions(task, masks, count)
            found.append(measured_bytes(task, masks, dense, graph, checkpoints, ways))
            sys.stdout.write(_bytes_row(found[-1]))
            if masks == "trained":
                model = emitted(graph, checkpoints[:1])[0][SMALLEST].model
                latency[task.name] = {
                    "model": milliseconds(model, ways, repeats),
                    "checkpoint": milliseconds(encode_tensors(checkpoints[0]), ways, repeats),
                }
    calls = measured_calls(TASKS[0], TIMED_SPARSITIES[:1] if arguments.quick else TIMED_SPARSITIES, repeats)
    costs = [dense_cost(width, repeats) for width in ((64, 256) if arguments.quick else (64, 256, 2048))]
    if arguments.plot:
        # Imported here, because only the plot needs it.
        from benchmarks.policy.sparse_policy_plot import plot

        plot(found, calls, BOUNDS, arguments.plot)
    figures = {
        "bytes": [{**asdict(each), "times": {name: each.saved(name) for name in each.watched}} for each in found],
        "milliseconds to write and to read": latency,
        "calls": [asdict(each) for each in calls],
        "dense policies": [asdict(each) for each in costs],
    }
    return figures, targets(found, calls, costs)


def targets(found: Sequence[Bytes], calls: Sequence[Calls], costs: Sequence[DenseCost]) -> list[Target]:
    """Targets: bytes of policies with trained masks, the fastest scheme with structured masks, the dense overhead."""
    result = []
    for policy in found:
        if policy.masks == "trained":
            name = f"{policy.task}, trained masks: times fewer bytes ({SMALLEST})"
            result.append(Target(name, policy.saved(), BOUNDS[policy.task], at_most=False))
            own = policy.watched[FP32] / policy.watched[SMALLEST]
            name = f"{policy.task}, trained masks: times fewer bytes than the same network in fp32 ({SMALLEST})"
            result.append(Target(name, own, INT8_BYTES[policy.task], at_most=False))
    dense = {each.batch: each.timings for each in calls if each.masks == "dense"}
    for each in calls:
        if each.masks == "structured" and each.batch == max(BATCHES):
            scheme = min((name for name in each.timings if name != FP32), key=lambda name: each.timings[name].median)
            ratio = dense[each.batch][FP32].median / each.timings[scheme].median
            name = f"structured {each.sparsity:.0%}, batch {each.batch}: times faster than dense fp32 ({scheme})"
            result.append(Target(name, ratio, 3.0, at_most=False))
            own = each.timings[FP32].median / each.timings[scheme].median
            name = f"structured {each.sparsity:.0%}, batch {each.batch}: times faster than the same network in fp32"
            result.append(Target(f"{name} ({scheme})", own, INT8_CALLS[each.sparsity], at_most=False))
    for cost in costs:
        name = f"dense {cost.width} x 3: looking for units to take out, percent of an int8 emission"
        result.append(Target(name, 100 * cost.look / cost.emission, 2.0))
    return result


def dense_cost(width: int, repeats: int) -> DenseCost:
    """The overhead of the search for removable units, for a dense policy of three hidden layers."""
    graph, checkpoint = checkpoint_of(vector_network("mlp", width))
    prepared = PreparedGraph(Graph.parse(graph))
    spans: tuple[list[float], list[float]] = ([], [])
    ended: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        store = PolicyStore(Path(folder), retain_newest=1, retain_best=0)
        emitter = Emitter(store)
        emitter.catalog.claim("dense")
        emitter.add_graph(graph)
        for version in range(1, 2 * repeats + 1):
            version_of = replace(checkpoint, version=version)
            began = time.thread_time()
            # The emission ends when the policy is served. Storing comes later.
            emitter.publish(version_of, ["int8"], lambda _: ended.append(time.thread_time()))
            spans[0].append(ended.pop() - began)
            began = time.thread_time()
            prepared.without_dead_units(version_of)
            spans[1].append(time.thread_time() - began)
        store.close()
    return DenseCost(width, *(1e3 * statistics.median(each) for each in spans))


def emitted(
    graph: PolicyGraph, checkpoints: Sequence[Checkpoint], schemes: Sequence[str] = SCHEMES
) -> list[dict[str, Policy]]:
    """Versions as a quantizer emits them, by scheme. Names with `ENDS` also quantize the first and last layers."""
    result: list[dict[str, Policy]] = [{} for _ in checkpoints]
    for suffix in ("", ENDS):
        own = [name.removesuffix(ENDS) for name in schemes if name.endswith(ENDS) == bool(suffix)]
        with tempfile.TemporaryDirectory() as folder:
            store = PolicyStore(Path(folder), retain_newest=1, retain_best=0)
            emitter = Emitter(store, QuantizerConfig(quantize_ends=bool(suffix)))
            emitter.catalog.claim("3f2a9c51d07b4e68")
            emitter.add_graph(graph)
            for found, checkpoint in zip(result, checkpoints, strict=True):
                for policy in emitter.publish(checkpoint, own):
                    found[policy.descriptor.scheme + suffix] = policy
            store.close()
    return result


def measured_bytes(
    task: Task,
    masks: str,
    dense: tuple[PolicyGraph, list[Checkpoint]],
    graph: PolicyGraph,
    checkpoints: list[Checkpoint],
    ways: Mapping[str, Form],
) -> Bytes:
    """Messages and other forms of a policy's versions. Figures that need only one version use the first."""
    first = checkpoints[0]
    (policies,) = emitted(graph, [first])
    models = [each[SMALLEST].model for each in emitted(graph, checkpoints, (SMALLEST,))]
    tensors = [encode_tensors(each) for each in checkpoints]
    return Bytes(
        task=task.name,
        masks=masks,
        sparsity=task.sparsity,
        widths=widths(policies[FP32]),
        dense=_watched(emitted(*dense, (FP32,))[0][FP32]),
        watched={name: _watched(policy) for name, policy in policies.items()},
        errors={name: policy.descriptor.fidelity.relative_mean_error for name, policy in policies.items()},
        dense_published=_published(dense[0], dense[1][0]),
        published=_published(graph, first),
        calibration=sum(array.nbytes for array in first.calibration.values()),
        written={
            what: {**sizes(data[0], ways), "mask once": mask_once(data), "values only": values_only(data[0])}
            for what, data in (("model", models), ("checkpoint", tensors))
        },
    )


def widths(policy: Policy) -> tuple[int, ...]:
    """Units of the hidden layers; 256 if none was removed."""
    return tuple(layer.units or 256 for layer in policy.descriptor.fidelity.layers[:-1])


def measured_calls(task: Task, sparsities: Sequence[float], repeats: int) -> list[Calls]:
    """Every policy at every batch size. All policies of one size take turns."""
    kinds = [("dense", 0.0), *((masks, sparsity) for sparsity in sparsities for masks in MASKS)]
    spec = environment_spec((task.observations,), "float32", task.actions, discrete=False)
    policies: dict[tuple[str, float, str], Policy] = {}
    shapes: dict[tuple[str, float], tuple[int, ...]] = {}
    for masks, sparsity in kinds:
        graph, checkpoints = versions(replace(task, sparsity=sparsity), masks)
        (found,) = emitted(graph, checkpoints)
        shapes[masks, sparsity] = widths(found[FP32])
        policies |= {(masks, sparsity, scheme): policy for scheme, policy in found.items()}
        rows = next(iter(checkpoints[0].calibration.values()))
    result = []
    for batch in BATCHES:
        observations = np.ascontiguousarray(rows[:batch])
        calls = {
            "|".join(map(str, key)): _call(OnnxPolicy(policy, spec.observations, batch), observations)
            for key, policy in policies.items()
        }
        timings = tight(calls, repeats, SLICE_S)
        for masks, sparsity in kinds:
            own = {scheme: timings[f"{masks}|{sparsity}|{scheme}"] for scheme in SCHEMES}
            result.append(Calls(masks, sparsity, batch, shapes[masks, sparsity], own))
            sys.stdout.write(_calls_row(result[-1]))
    return result


def _call(policy: Callable[[NDArray[Any]], object], observations: NDArray[Any]) -> Callable[[], object]:
    return lambda: policy(observations)


def _watched(policy: Policy) -> int:
    return sum(map(len, policy_messages(policy)))


def _published(graph: PolicyGraph, checkpoint: Checkpoint) -> int:
    snapshot = Snapshot(checkpoint.learner_step, checkpoint.parameters, checkpoint.calibration, checkpoint.snapshot_at)
    requests = checkpoint_requests(checkpoint.version, snapshot, graph, ENCODINGS)
    return sum(request.ByteSize() for request in requests)


def _bytes_row(found: Bytes) -> str:
    schemes = "  ".join(f"{name} {size} ({found.saved(name):.1f}x)" for name, size in found.watched.items())
    forms = "  ".join(f"{name} {size:.0f}" for name, size in found.written["model"].items())
    up = "  ".join(f"{name} {size:.0f}" for name, size in found.written["checkpoint"].items())
    return (
        f"{found.task} {found.sparsity:.0%} {found.masks} {found.widths}, dense fp32 {found.dense}: {schemes}\n"
        f"  {SMALLEST} model: {forms}\n  checkpoint, {found.calibration} of it observations: {up}\n"
        f"  published {found.published}, dense {found.dense_published}\n"
    )


def _calls_row(calls: Calls) -> str:
    cells = "  ".join(f"{name} {timing.median:.1f}" for name, timing in calls.timings.items())
    return f"{calls.masks} {calls.sparsity:.0%} {calls.widths} batch {calls.batch}, us: {cells}\n"


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
