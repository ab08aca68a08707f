"""The certificates of a run: its members connect in their roles, and renewal happens before expiry."""

import base64
from datetime import UTC, datetime, timedelta

import kubernetes_validate
import pytest
from cryptography import x509

from actorq.client import LearnerClient
from actorq.config.sections import TransportConfig
from actorq.errors import DeniedError, UnavailableError
from actorq.transport.options import Certificates
from actorq.transport.security.access import Access
from actorq.transport.security.identity import parse_identity
from actorq.transport.security.roles import ROLES
from actorq_apps.operator.certificates import AUTHORITY_LIFE, LIFE, certificates, secret_name, secrets
from actorq_apps.operator.render import identity, objects
from actorq_apps.operator.resource.training_run import TrainingRun
from tests.actorq.transport.staged_servicer import StagedLearner, serving
from tests.actorq_apps.operator.training_runs import SPECS, Object, training_run

NOW = datetime.now(UTC)
RUN = training_run()


def made(run: TrainingRun = RUN, now: datetime = NOW) -> dict[str, Object]:
    return {each["metadata"]["name"]: each for each in secrets(run, {}, now)}


@pytest.fixture(scope="module")
def existing() -> dict[str, Object]:
    return made()


def of(secret: dict[str, Object], role: str, run: TrainingRun = RUN) -> Certificates:
    found = certificates(secret[secret_name(run, role)])
    assert found
    return found


def leaf(secret: Object, name: str = "tls.crt") -> x509.Certificate:
    return x509.load_pem_x509_certificate(base64.b64decode(secret["data"][name]))


def test_each_secret_that_a_pod_mounts_is_made(existing: dict[str, Object]) -> None:
    run = training_run(relays={"replicas": 1})
    mounted = {
        volume["secret"]["secretName"]
        for each in objects(run)
        if each["kind"] in ("Deployment", "StatefulSet")
        for volume in each["spec"]["template"]["spec"]["volumes"]
        if "secret" in volume
    }
    assert mounted == {f"alpha-{role}-tls" for role in ("learner", "quantizer", "relay", "actor", "evaluator")}
    assert mounted < set(existing) == {f"alpha-{role}-tls" for role in {*ROLES, "authority"} - {"meter"}}
    for secret in existing.values():
        kubernetes_validate.validate(secret, "1.32", strict=True)
        assert secret["metadata"]["ownerReferences"][0]["uid"] == RUN.uid


def test_the_operator_controls_the_run_and_other_roles_do_not(existing: dict[str, Object]) -> None:
    with serving(StagedLearner(), of(existing, "learner"), access=Access(identity(RUN))) as stage:
        with LearnerClient(stage.address, of(existing, "operator")) as client:
            assert client.status().run_id == "run"
        with (
            LearnerClient(stage.address, of(existing, "actor")) as client,
            pytest.raises(DeniedError, match=r"actor .*LearnerService\.GetStatus"),
        ):
            client.status()


def test_runs_of_the_same_name_in_two_namespaces_do_not_trust_each_other(existing: dict[str, Object]) -> None:
    other = training_run(namespace="elsewhere")
    assert identity(other) != identity(RUN)
    stranger = of(made(other), "operator", other)
    with (
        serving(StagedLearner(), of(existing, "learner"), access=Access(identity(RUN))) as stage,
        LearnerClient(stage.address, stranger) as client,
        pytest.raises(UnavailableError),
    ):
        client.status()


def test_pods_start_with_the_certificates_of_their_role_and_run(existing: dict[str, Object]) -> None:
    for each in objects(RUN):
        if each["kind"] not in ("Deployment", "StatefulSet"):
            continue
        pod = each["spec"]["template"]["spec"]
        (secret,) = (volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume)
        uris = leaf(existing[secret]).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        owner = parse_identity(uris.get_values_for_type(x509.UniformResourceIdentifier))
        environment = {variable["name"]: variable.get("value") for variable in pod["containers"][0]["env"]}
        assert TransportConfig(run=owner.run).run == environment["ACTORQ_TRANSPORT__RUN"]
        assert owner.role == pod["containers"][0]["name"]
        # Pods are named after their Deployment or StatefulSet.
        assert owner.may_be_called(f"{each['metadata']['name']}-5d9c-x")


@pytest.mark.parametrize("service", ["learner", "quantizer", "relay"])
def test_a_services_certificate_has_its_names_in_the_cluster(service: str, existing: dict[str, Object]) -> None:
    names = leaf(existing[f"alpha-{service}-tls"]).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    name = f"alpha-{service}"
    wanted = {name, f"{name}.lab", f"{name}.lab.svc", f"{name}.lab.svc.cluster.local", "localhost"}
    assert wanted <= set(names.value.get_values_for_type(x509.DNSName))


def test_the_actors_of_a_run_with_simulators_are_its_evaluators() -> None:
    run = training_run(**SPECS["simulator"])
    (workload,) = (
        each
        for each in objects(run)
        if each["metadata"]["name"] == "alpha-actor" and "template" in each.get("spec", {})
    )
    actor, simulator = workload["spec"]["template"]["spec"]["containers"]
    volumes = {
        each["name"]: each["secret"]["secretName"]
        for each in workload["spec"]["template"]["spec"]["volumes"]
        if "secret" in each
    }
    issued = made(run)
    owners = {}
    for container in (actor, simulator):
        for mount in container["volumeMounts"]:
            if (secret := volumes.get(mount["name"])) is not None:
                uris = leaf(issued[secret]).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
                found = parse_identity(uris.get_values_for_type(x509.UniformResourceIdentifier))
                owners[mount["mountPath"].rpartition("/")[2]] = found
    assert owners["actor"].may_be_called("alpha-actor-5d9c-x")
    assert (owners["evaluator"].role, owners["evaluator"].name) == ("evaluator", "alpha-actor-")
    # The name of an actor's evaluator.
    assert owners["evaluator"].may_be_called("alpha-actor-5d9c-x-evaluator")
    assert owners["actor-certificates"].role == "simulator"


def test_creates_nothing_while_all_certificates_are_valid(existing: dict[str, Object]) -> None:
    assert secrets(RUN, existing, NOW + LIFE / 2) == []


def test_without_generated_certificates_there_are_no_secrets() -> None:
    assert secrets(training_run(tls={"mode": "none"}), {}, NOW) == []


def test_certificates_are_renewed_a_third_of_their_life_before_their_end(existing: dict[str, Object]) -> None:
    later = NOW + LIFE * 2 / 3 + timedelta(hours=1)
    renewed = {each["metadata"]["name"]: each for each in secrets(RUN, existing, later)}
    assert set(renewed) == set(existing) - {"alpha-authority-tls"}
    assert leaf(renewed["alpha-learner-tls"]).not_valid_after_utc >= later + LIFE - timedelta(minutes=1)


def test_old_and_new_certificates_of_a_renewed_authority_trust_each_other() -> None:
    first = made(now=NOW - AUTHORITY_LIFE * 2 / 3 - timedelta(days=1))
    before = {**first, **{each["metadata"]["name"]: each for each in secrets(RUN, first, NOW - LIFE / 3)}}
    after = {**before, **{each["metadata"]["name"]: each for each in secrets(RUN, before, NOW)}}
    assert leaf(before["alpha-authority-tls"]) == leaf(first["alpha-authority-tls"])
    assert all(leaf(each, "ca.crt") != leaf(before["alpha-authority-tls"]) for each in after.values())
    for server, client in ((before, after), (after, before)):
        with (
            serving(StagedLearner(), of(server, "learner"), access=Access(identity(RUN))) as stage,
            LearnerClient(stage.address, of(client, "operator")) as learner,
        ):
            assert learner.status().run_id == "run"


@pytest.mark.parametrize("damage", ["", "no base64!", base64.b64encode(b"no certificate").decode()])
@pytest.mark.parametrize("role", ["authority", "learner"])
@pytest.mark.parametrize("file", ["tls.crt", "tls.key", "ca.crt"])
def test_a_damaged_secret_is_made_again(file: str, role: str, damage: str, existing: dict[str, Object]) -> None:
    if (role, file) == ("authority", "ca.crt"):
        return
    name = secret_name(RUN, role)
    damaged = {**existing, name: {**existing[name], "data": {**existing[name]["data"], file: damage}}}
    again = {each["metadata"]["name"]: each for each in secrets(RUN, damaged, NOW)}
    # Certificates of another authority are useless.
    assert set(again) == (set(existing) if role == "authority" else {name})
    assert secrets(RUN, {**damaged, **again}, NOW) == []


def test_a_key_of_another_secret_is_not_used(existing: dict[str, Object]) -> None:
    name, key = "alpha-learner-tls", existing["alpha-actor-tls"]["data"]["tls.key"]
    mixed = {**existing, name: {**existing[name], "data": {**existing[name]["data"], "tls.key": key}}}
    assert [each["metadata"]["name"] for each in secrets(RUN, mixed, NOW)] == [name]


def test_a_secret_of_another_role_is_not_used(existing: dict[str, Object]) -> None:
    mixed = {**existing, "alpha-actor-tls": existing["alpha-operator-tls"]}
    assert [each["metadata"]["name"] for each in secrets(RUN, mixed, NOW)] == ["alpha-actor-tls"]
