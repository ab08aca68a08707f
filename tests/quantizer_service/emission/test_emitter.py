import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from actorq.config.sections import GateConfig, QuantizerConfig
from actorq.domain.policy import Checkpoint, Policy, Variant
from actorq.domain.trajectory import Evaluation
from actorq.errors import ConflictError, InvalidInputError, NotFoundError
from actorq.statefiles.highwater import BLOCK
from quantizer_service.emission.emitter import Emitter
from quantizer_service.emission.reference import MAX_WEIGHT_ROWS
from quantizer_service.store.reader import PolicyReader
from quantizer_service.store.store import PolicyStore
from tests.builders.processors import INT8_HERE
from tests.quantizer_service.policy_graphs import dueling, mlp
from tests.quantizer_service.policy_runs import checkpoint, random_observations, random_parameters
from tests.quantizer_service.ruined_policies import DEEP, dead_observations, deep_parameters

SOURCE = mlp(8, 8)


def opened(path: Path) -> Emitter:
    return Emitter(PolicyStore(path, retain_newest=4, retain_best=1))


def opened_after_a_kill(path: Path) -> Emitter:
    """What a process finds that starts after the one that writes there was killed."""
    return opened(shutil.copytree(path, path.with_name("after a kill")))


def reading(path: Path) -> Emitter:
    return Emitter(PolicyReader(path))


def ready(path: Path, versions: int = 0) -> Emitter:
    emitter = opened(path)
    emitter.catalog.claim("run")
    emitter.add_graph(SOURCE)
    for version in range(1, versions + 1):
        taken = checkpoint(SOURCE, version)
        emitter.publish(taken, ["int8"])
    return emitter


def test_a_claim_returns_the_last_version_and_the_known_graphs(tmp_path: Path) -> None:
    empty = opened(tmp_path / "empty").catalog
    with pytest.raises(ConflictError, match="no run"):
        _ = empty.run_id
    assert empty.claim("run") == (0, ())
    assert empty.run_id == "run"
    assert ready(tmp_path / "store", versions=2).catalog.claim("run") == (2, (SOURCE.digest,))
    emitter = opened_after_a_kill(tmp_path / "store")
    # A version up to the mark of the one before may have been served.
    assert emitter.catalog.claim("run") == (1 + BLOCK, (SOURCE.digest,))
    with pytest.raises(ConflictError, match="empty --store"):
        emitter.catalog.claim("another run")


def test_a_version_is_served_before_it_is_stored(tmp_path: Path) -> None:
    emitter = ready(tmp_path)
    announced: list[Policy] = []

    def announce(policies: Sequence[Policy]) -> None:
        announced.extend(policies)
        assert emitter.catalog.get(INT8_HERE) is announced[0]
        assert emitter.catalog.get(Variant("fp32"), 1).descriptor.scheme == "fp32"
        assert reading(tmp_path).catalog.newest_version == 0

    assert emitter.publish(checkpoint(SOURCE, 1), ["int8"], announce) == tuple(announced)
    assert reading(tmp_path).catalog.newest_version == 1


def test_each_scheme_in_use_is_emitted(tmp_path: Path) -> None:
    policies = ready(tmp_path).publish(checkpoint(SOURCE, 1), ["int8", "fp32"])

    assert [policy.descriptor.scheme for policy in policies] == ["int8", "fp32"]


def test_versions_only_rise_also_after_a_restart_and_above_damaged_ones(tmp_path: Path) -> None:
    ready(tmp_path / "store", versions=3)
    (tmp_path / "store" / "00000003" / "checkpoint.safetensors").write_bytes(b"")
    emitter = opened_after_a_kill(tmp_path / "store")

    assert emitter.catalog.newest_version == 2
    mark = emitter.catalog.claim("run")[0]
    assert mark == 1 + BLOCK
    with pytest.raises(ConflictError, match=f"version above {mark}, .*3"):
        emitter.publish(checkpoint(SOURCE, 3), ["int8"])
    assert emitter.publish(checkpoint(SOURCE, mark + 1), ["int8"])[0].descriptor.version == mark + 1


def test_a_restarted_emitter_has_the_same_newest_policies(tmp_path: Path) -> None:
    before = ready(tmp_path, versions=2)
    before.catalog.get(Variant("fp32"))

    again = reading(tmp_path)

    assert {p.descriptor.scheme: p for p in again.catalog.newest_policies} == {
        p.descriptor.scheme: p for p in before.catalog.newest_policies
    }


def test_a_policy_that_is_emitted_later_equals_one_that_was_emitted_at_once(tmp_path: Path) -> None:
    emitter = ready(tmp_path / "one", versions=2)
    other = ready(tmp_path / "other")
    at_once = other.publish(checkpoint(SOURCE, 1), ["int8", "fp32"])[1]

    assert (
        reading(tmp_path / "one").catalog.get(Variant("fp32"), 1) == at_once == emitter.catalog.get(Variant("fp32"), 1)
    )


def test_a_reader_emits_into_memory_and_still_serves_removed_versions(tmp_path: Path) -> None:
    writer = ready(tmp_path, versions=2)
    reader = reading(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    served = [reader.catalog.get(Variant(scheme), version) for version in (1, 2) for scheme in ("int8", "fp32")]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before

    for version in range(3, 9):
        taken = checkpoint(SOURCE, version)
        writer.publish(taken, ["int8"])

    assert [reader.catalog.get(Variant(scheme), version) for version in (1, 2) for scheme in ("int8", "fp32")] == served
    assert not (tmp_path / "00000001").exists()


def test_a_reader_keeps_the_policies_that_it_served_last(tmp_path: Path) -> None:
    emitter = Emitter(PolicyStore(tmp_path, retain_newest=18, retain_best=1))
    emitter.catalog.claim("run")
    emitter.add_graph(SOURCE)
    for version in range(1, 19):
        emitter.publish(checkpoint(SOURCE, version), ["int8"])
    reader = reading(tmp_path)
    served = [reader.catalog.get(Variant("int8"), version) for version in range(1, 18)]
    for version in range(1, 18):
        shutil.rmtree(tmp_path / f"{version:08d}")

    assert [reader.catalog.get(Variant("int8"), version) for version in range(2, 18)] == served[1:]
    with pytest.raises(NotFoundError):
        reader.catalog.get(Variant("int8"), 1)


def test_a_version_removed_before_a_reader_serves_it_is_not_found(tmp_path: Path) -> None:
    writer = ready(tmp_path, versions=2)
    reader = reading(tmp_path)
    for version in range(3, 9):
        taken = checkpoint(SOURCE, version)
        writer.publish(taken, ["int8"])

    with pytest.raises(NotFoundError, match="version 1 "):
        reader.catalog.get(Variant("fp32"), 1)


def test_a_reader_reports_that_all_versions_were_replaced_during_the_read(tmp_path: Path) -> None:
    ready(tmp_path, versions=1)
    store = PolicyReader(tmp_path)
    (tmp_path / "00000001").rename(tmp_path / ".00000001.removed")

    with pytest.raises(NotFoundError, match="newer versions"):
        Emitter(store).catalog.get(Variant("int8"))


def test_nothing_can_be_published_to_a_reader(tmp_path: Path) -> None:
    ready(tmp_path, versions=1)

    with pytest.raises(ConflictError, match="read-only"):
        reading(tmp_path).catalog.claim("run")


@pytest.mark.parametrize(("versions", "fact"), [(1, "only version"), (3, "all 3 versions")])
def test_a_store_of_damaged_versions_names_the_damaged_file_of_the_newest(
    tmp_path: Path, versions: int, fact: str
) -> None:
    ready(tmp_path, versions)
    for version in range(1, versions + 1):
        (tmp_path / f"{version:08d}" / "checkpoint.safetensors").write_bytes(b"")

    with pytest.raises(
        InvalidInputError, match=f"{fact} .*damaged; version {versions}: .*{versions}/checkpoint.safetensors"
    ):
        reading(tmp_path).catalog.get(Variant("int8"))
    with pytest.raises(NotFoundError, match="no policy"):
        opened(tmp_path / "empty").catalog.get(Variant("int8"))


def test_a_refused_checkpoint_changes_nothing(tmp_path: Path) -> None:
    emitter = ready(tmp_path, versions=1)
    parameters = {**random_parameters(SOURCE, 1), "extra": random_parameters(SOURCE, 1)["layers.0.bias"]}
    with pytest.raises(InvalidInputError, match="extra"):
        emitter.publish(checkpoint(SOURCE, 2, parameters=parameters), ["int8"])
    with pytest.raises(ConflictError, match=dueling().digest.hex()[:8]):
        emitter.publish(checkpoint(dueling(), 2), ["int8"])
    with pytest.raises(NotFoundError, match="int3"):
        emitter.publish(checkpoint(SOURCE, 2), ["int8", "int3"])

    assert emitter.catalog.newest_version == 1
    assert emitter.publish(checkpoint(SOURCE, 2), ["int8"])


def test_topologies_may_change_and_come_back(tmp_path: Path) -> None:
    emitter = ready(tmp_path)
    sources = [mlp(8, width) for width in range(2, 9)]
    for source in sources:
        emitter.add_graph(source)

    for version, source in enumerate((*sources, *sources), start=1):
        (policy,) = emitter.publish(checkpoint(source, version), ["int8"])
        assert policy.descriptor.version == version


def test_evaluations_of_removed_versions_are_dropped(tmp_path: Path) -> None:
    emitter = ready(tmp_path, versions=1)
    for version, value in ((1, 5.0), (9, 7.0)):
        emitter.catalog.record_evaluation(Evaluation(1, version, 100, "int8", (value, value + 2), (10, 10), 0.5))

    ((entry,), token) = emitter.catalog.list_versions()
    assert (entry.version, entry.mean_return, token) == (1, 6.0, "")


def ruined(version: int, *layers: str) -> Checkpoint:
    return checkpoint(DEEP, version, parameters=deep_parameters(version, layers), calibration=dead_observations())


def gated(path: Path) -> Emitter:
    config = QuantizerConfig(gate=GateConfig(min_agreement=0.9))
    emitter = Emitter(PolicyStore(path, retain_newest=4, retain_best=1), config)
    emitter.catalog.claim("run")
    emitter.add_graph(DEEP)
    return emitter


def test_a_policy_that_is_requested_later_has_passed_the_gate_too(tmp_path: Path) -> None:
    emitter = gated(tmp_path)
    for version in (1, 2):
        taken = ruined(version, "layers.1", "layers.2", "layers.3")
        emitter.publish(taken, ["fp32"])

    for version in (1, 2):
        fidelity = emitter.catalog.get(Variant("int8"), version).descriptor.fidelity
        assert (fidelity.passed, bool(fidelity.refused), bool(fidelity.gated_layers)) == (True, True, True)


def test_the_rung_of_an_old_version_does_not_affect_the_next_version(tmp_path: Path) -> None:
    emitter = gated(tmp_path)
    for taken in (ruined(1, "layers.2"), ruined(2)):
        emitter.publish(taken, ["fp32"])
    assert emitter.catalog.get(Variant("int8"), 1).descriptor.fidelity.gated_layers == ("layers.2",)

    (policy,) = emitter.publish(ruined(3), ["int8"])

    assert (policy.descriptor.fidelity.gated_layers, policy.descriptor.fidelity.refused) == ((), ())


def test_a_version_that_the_gate_put_in_float_keeps_its_scheme_and_its_evaluations_count(tmp_path: Path) -> None:
    emitter = gated(tmp_path)
    taken = ruined(1, "layers.1", "layers.2", "layers.3")
    (policy,) = emitter.publish(taken, ["int8"])
    emitter.catalog.record_evaluation(Evaluation(1, 1, 100, "fp32", (5.0,), (10,), 0.5))

    assert (policy.descriptor.scheme, policy.descriptor.effective_scheme) == ("int8", "fp32")
    ((entry,), _) = emitter.catalog.list_versions()
    assert (entry.schemes, entry.mean_return) == (("int8",), 5.0)


def test_refused_rungs_and_topology_survive_a_restart(tmp_path: Path) -> None:
    taken = ruined(1, "layers.1", "layers.2", "layers.3")
    emitter = gated(tmp_path)
    policies = emitter.publish(taken, ["int8"])

    again = reading(tmp_path).catalog.newest_policies

    assert again == policies
    assert again[0].descriptor.fidelity.refused
    assert again[0].descriptor.graph_digest == DEEP.digest


def test_a_version_without_watchers_or_a_scheme_is_checked_and_kept(tmp_path: Path) -> None:
    emitter = ready(tmp_path)
    taken = checkpoint(SOURCE, 1)
    emitter.publish(taken, [])

    assert emitter.catalog.newest_version == 1
    nan = {name: array * float("nan") for name, array in random_parameters(SOURCE, 2).items()}
    with pytest.raises(InvalidInputError, match="finite"):
        emitter.publish(checkpoint(SOURCE, 2, parameters=nan), [])
    assert emitter.catalog.get(Variant("int8")).descriptor.version == 1
    assert reading(tmp_path).catalog.get(Variant("int8")).descriptor == emitter.catalog.get(Variant("int8")).descriptor


@pytest.mark.parametrize(("others", "climbs_again"), [(3, False), (4, True)])
def test_a_graph_keeps_its_rung_while_few_graphs_alternate(tmp_path: Path, others: int, climbs_again: bool) -> None:
    emitter = gated(tmp_path)
    emitter.publish(ruined(1, "layers.2"), ["int8"])
    for width in range(2, 2 + others):
        emitter.add_graph(mlp(width))

    (policy,) = emitter.publish(ruined(2, "layers.2"), ["int8"])

    assert policy.descriptor.fidelity.gated_layers == ("layers.2",)
    assert bool(policy.descriptor.fidelity.refused) is climbs_again


def test_a_large_policy_is_compared_on_a_part_of_its_observations(tmp_path: Path) -> None:
    emitter, large = ready(tmp_path), mlp(1000, 1000)
    emitter.add_graph(large)
    weights = sum(array.size for array in random_parameters(large, 1).values())
    most = MAX_WEIGHT_ROWS // weights

    (policy,) = emitter.publish(checkpoint(large, 1, calibration=random_observations(most + 1)), ["int8"])

    assert policy.descriptor.fidelity.observations == most
