"""A quantizer's metrics of its newest policies."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

from actorq.domain.policy import PolicyDescriptor, PolicyGraph, Variant
from actorq.domain.processes import ProcessStats
from quantizer_service.emission.emitter import Emitter
from quantizer_service.serving.metrics import quantizer_metrics
from quantizer_service.serving.quantizer import Quantizer
from quantizer_service.store.store import PolicyStore
from tests.quantizer_service.policy_graphs import gaussian, mlp
from tests.quantizer_service.policy_runs import checkpoint
from tests.quantizer_service.ruined_policies import DEEP, dead_observations, deep_parameters

PROCESS = ProcessStats("quantizer", "quantizer", "node", 1, 0.0, 0.0, 1, 1)


def told(folder: Path, source: PolicyGraph) -> tuple[PolicyDescriptor, Mapping[str, float]]:
    """The descriptor of an int8 policy, and the samples with the label int8."""
    emitter = Emitter(PolicyStore(folder, 2, 0))
    emitter.catalog.claim("run")
    emitter.add_graph(source)
    (policy,) = emitter.publish(checkpoint(source, 1), ["int8"])

    async def families() -> dict[str, float]:
        samples = (
            sample for family in quantizer_metrics(Quantizer(emitter, lambda: PROCESS)) for sample in family.samples
        )
        return {sample.name: sample.value for sample in samples if sample.labels.get("scheme") == "int8"}

    return policy.descriptor, asyncio.run(families())


def test_policies_refused_rungs_and_times_are_counted(tmp_path: Path) -> None:
    emitter = Emitter(PolicyStore(tmp_path, 2, 0))
    emitter.catalog.claim("run")
    emitter.add_graph(DEEP)

    async def counted() -> tuple[int, dict[tuple[str, str], float]]:
        quantizer, refused = Quantizer(emitter, lambda: PROCESS), 0
        for number in (1, 2):
            ruined = deep_parameters(number, ("layers.2",))
            version = checkpoint(DEEP, number, parameters=ruined, calibration=dead_observations())
            with await quantizer.watch(Variant("fp32"), 0):
                receipt = await quantizer.publish(version, "int8", time.perf_counter())
            refused += sum(len(policy.fidelity.refused) for policy in receipt.policies)
        found = [sample for family in quantizer_metrics(quantizer) for sample in family.samples]
        return refused, {(sample.name, sample.labels.get("scheme", "")): sample.value for sample in found}

    refused, samples = asyncio.run(counted())
    for scheme in ("int8", "fp32"):
        assert samples["actorq_quantizer_policies_total", scheme] == 2
    assert samples["actorq_quantizer_gate_refusals_total", "int8"] == refused > 0
    assert samples["actorq_quantizer_gate_refusals_total", "fp32"] == 0
    assert samples["actorq_quantizer_emit_seconds_count", ""] == 2
    assert samples["actorq_quantizer_emit_seconds_sum", ""] > 0


def test_the_metrics_have_the_divergence_of_policies_with_a_distribution(tmp_path: Path) -> None:
    policy, samples = told(tmp_path, gaussian())
    assert samples["actorq_quantizer_mean_kl_nats"] == policy.fidelity.mean_kl
    assert samples["actorq_quantizer_max_kl_nats"] == policy.fidelity.max_kl
    assert samples["actorq_quantizer_relative_mean_error_ratio"] == policy.fidelity.relative_mean_error
    assert "actorq_quantizer_argmax_agreement_ratio" not in samples


def test_other_policies_have_no_divergence_metric(tmp_path: Path) -> None:
    policy, samples = told(tmp_path, mlp(8, 8))
    assert samples["actorq_quantizer_argmax_agreement_ratio"] == policy.fidelity.argmax_agreement
    assert not {name for name in samples if name.endswith("_kl_nats")}
