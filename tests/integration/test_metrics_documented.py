"""The served metrics equal the documented ones, and change while a run trains."""

import re
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from actorq.client import LearnerClient
from sitegen import metrics
from tests.builders.processors import INT8_HERE
from tests.builders.service_process import refusal, service_process

PREFIXES = {
    "learner": metrics.LEARNER,
    "quantizer": metrics.QUANTIZER,
    "relay": metrics.RELAY,
    "actor": metrics.ACTOR,
    "evaluator": metrics.ACTOR,
}


@dataclass(frozen=True)
class Scraped:
    """Types by name, as documented; samples by name and label values; labels by name. openmetrics: types by name in the
    OpenMetrics format, which names counters without _total.
    """

    kinds: dict[str, str]
    openmetrics: dict[str, str]
    samples: dict[tuple[str, ...], float]
    labels: dict[str, set[str]]


def scrape(address: str) -> Scraped:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as response:
        text = response.read().decode()
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    families = list(text_string_to_metric_families(text))
    samples = {
        (sample.name, *(value for name, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }
    labels = {sample.name: set(sample.labels) for family in families for sample in family.samples}
    asked = urllib.request.Request(
        f"http://{address}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    with urllib.request.urlopen(asked, timeout=20) as response:
        strict = openmetrics.text_string_to_metric_families(response.read().decode())  # type: ignore[no-untyped-call]
        return Scraped(kinds, {family.name: family.type for family in strict}, samples, labels)


def test_prometheus_can_read_the_format_that_it_requests(scraped: dict[str, Scraped]) -> None:
    assert {service: each.openmetrics for service, each in scraped.items()} == {
        service: {re.sub(r"_total$", "", name): kind for name, kind in each.kinds.items()}
        for service, each in scraped.items()
    }


def documented(service: str) -> list[metrics.DocumentedMetric]:
    """The documented metrics of one service, with those of every service."""
    return metrics.of_service(PREFIXES[service]) + metrics.of_service("")


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Scraped]]:
    """All services of an evaluated run, each scraped once."""
    folder = tmp_path_factory.mktemp("metrics")
    served = ("--metrics", "127.0.0.1:0", "--node", "node-7")
    with ExitStack() as stack:
        # A gate that passes every policy. A policy with all layers in float would not be smaller than its parameters.
        store = ("--store", str(folder / "p"), "--quantizer.gate.min-agreement", "0")
        quantizer = stack.enter_context(service_process("quantizer", *store, *served))
        # A run that is not solved before the tests read its metrics.
        endless = ("--target-return", "1000", "--max-environment-steps", "100000000")
        state = ("--run-directory", str(folder / "run"), "--quantizer", quantizer.address, *endless)
        learner = stack.enter_context(service_process("learner", *state, *served))
        peers = ("--learner", learner.address, "--quantizer", quantizer.address, *served)
        actor = stack.enter_context(service_process("actor", *peers, "--name", "actor-0"))
        relay = stack.enter_context(service_process("quantizer", "--upstream", quantizer.address, *served))
        behind = ("--learner", learner.address, "--quantizer", relay.address, *served)
        role = ("--role", "evaluator", "--name", "evaluator-0")
        evaluator = stack.enter_context(service_process("actor", *behind, *role))
        with LearnerClient(learner.address) as client:
            for status in client.watch(period_s=0.1):
                actors = {member.name for member in status.actors if member.report and member.report.policy_version > 1}
                if not (status.evaluation and status.updates > 10 and "actor-0" in actors):
                    continue
                # The rate is measured once a second, over one second.
                if ("actorq_learner_blocked_ratio",) in scrape(learner.metrics).samples:
                    break
        assert {process.node for process in status.processes} == {"node-7"}
        yield {
            "learner": scrape(learner.metrics),
            "quantizer": scrape(quantizer.metrics),
            "relay": scrape(relay.metrics),
            "actor": scrape(actor.metrics),
            "evaluator": scrape(evaluator.metrics),
        }


@pytest.mark.parametrize("service", ["learner", "quantizer", "relay", "actor", "evaluator"])
def test_a_service_serves_exactly_the_documented_metrics(service: str, scraped: dict[str, Scraped]) -> None:
    assert scraped[service].kinds == {each.name: each.kind for each in documented(service)}


@pytest.mark.parametrize("service", ["learner", "quantizer", "relay", "actor"])
def test_labels_equal_the_documented_labels(service: str, scraped: dict[str, Scraped]) -> None:
    sampled = scraped[service].labels
    for each in documented(service):
        if each.name in sampled and each.kind != "histogram":
            assert sampled[each.name] == set(each.labels), each.name


def test_a_learner_reports_the_progress_of_its_run(scraped: dict[str, Scraped]) -> None:
    samples = scraped["learner"].samples
    assert samples["actorq_learner_environment_steps_total",] >= 1000
    assert samples["actorq_learner_updates_total",] > 10
    assert samples["actorq_learner_evaluation_return",] > 0
    assert samples["actorq_learner_training_return",] > 0
    assert samples["actorq_learner_target_return",] == 1000
    assert samples["actorq_learner_state", "training"] == 1
    assert samples["actorq_learner_state", "paused"] == 0
    assert samples["actorq_learner_actors", "actor"] == 1
    assert samples["actorq_learner_actors", "evaluator"] == 1
    assert samples["actorq_learner_segments_total", "stored"] > 0
    assert samples["actorq_learner_segments_total", "refused"] == 0
    assert samples["actorq_learner_replay_transitions",] > 0
    assert samples["actorq_learner_quantizer_connected",] == 1
    assert 0 <= samples["actorq_learner_starved_ratio",] <= 1
    assert 0 <= samples["actorq_learner_blocked_ratio",] <= 1
    assert samples["actorq_learner_desired_actors",] >= 1
    assert samples["actorq_learner_staleness_versions", "50"] <= samples["actorq_learner_staleness_versions", "99"]
    assert samples["actorq_grpc_handled_total", "OK", "Join", "actorq.v1.LearnerService"] >= 2
    # No meter runs here, so there is no energy.
    assert all(value == 0 for key, value in samples.items() if key[0] == "actorq_learner_energy_joules_total")


def test_a_quantizer_reports_emitted_policies_and_their_fidelity(scraped: dict[str, Scraped]) -> None:
    samples = scraped["quantizer"].samples
    assert samples["actorq_quantizer_policies_total", *INT8_HERE] >= 1
    assert samples["actorq_quantizer_emit_seconds_count",] == samples["actorq_quantizer_policies_total", *INT8_HERE]
    # The actor and the relay.
    assert samples["actorq_quantizer_watchers", *INT8_HERE] == 2
    assert 0.5 <= samples["actorq_quantizer_argmax_agreement_ratio", *INT8_HERE] <= 1
    assert (
        samples["actorq_quantizer_policy_bytes", *INT8_HERE] < samples["actorq_quantizer_parameters_bytes", *INT8_HERE]
    )


def test_a_relay_reports_forwarded_policies(scraped: dict[str, Scraped]) -> None:
    samples = scraped["relay"].samples
    assert samples["actorq_relay_watchers", *INT8_HERE] == 1
    assert samples["actorq_relay_upstream_connected", *INT8_HERE] == 1
    assert samples["actorq_relay_policies_total", *INT8_HERE] >= 1
    assert samples["actorq_relay_policy_version", *INT8_HERE] >= 1
    assert samples["actorq_relay_lag_seconds", *INT8_HERE] > 0


def test_an_actor_reports_its_steps_and_policy(scraped: dict[str, Scraped]) -> None:
    samples = scraped["actor"].samples
    assert samples["actorq_actor_info", "actor-0", "actor"] == 1
    assert samples["actorq_actor_environment_steps_total",] > 0
    assert samples["actorq_actor_policy_version",] >= 2
    assert samples["actorq_actor_acknowledged_segments_total",] > 0
    assert samples["actorq_actor_activation_seconds_count",] >= 2
    assert samples["actorq_actor_load_seconds_count",] >= samples["actorq_actor_activation_seconds_count",]
    assert samples["actorq_actor_reconnects_total", "learner"] == 0
    assert samples["process_resident_memory_bytes",] > 1e7
    evaluator = scraped["evaluator"].samples
    assert evaluator["actorq_actor_info", "evaluator-0", "evaluator"] == 1
    assert evaluator["actorq_actor_acknowledged_segments_total",] >= 1


def test_a_port_in_use_ends_with_one_line(tmp_path: Path) -> None:
    store = ("--store", str(tmp_path / "one"))
    with service_process("quantizer", *store, "--metrics", "127.0.0.1:0") as first:
        said = refusal("quantizer", "--store", str(tmp_path / "two"), "--metrics", first.metrics)
    assert re.match(f"error: --metrics: .*{first.metrics} .*Address already in use", said)
