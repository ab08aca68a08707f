"""A TrainingRun with a simulator: a container beside each actor, and no evaluator."""

import kubernetes_validate
import pytest

from actorq.errors import UserError
from actorq_apps.operator.render import WORKERS, Images, objects
from tests.actorq_apps.operator.test_render import found, pod, replicas
from tests.actorq_apps.operator.training_runs import SIMULATOR, SPECS, Object, training_run

ROBOT: Object = {"environment": "external/robot"}


def simulator_of(made: list[Object]) -> Object:
    """The container of the simulator."""
    container: Object
    _, container = pod(made, "actor")["containers"]
    return container


def test_the_operator_makes_no_evaluator_because_actors_evaluate() -> None:
    made = objects(training_run(**SPECS["simulator"], evaluator={"replicas": 1}))
    assert replicas(made) == {"learner": 1, "quantizer": 1, "actor": 3}
    assert replicas(objects(training_run(**SPECS["simulator"]), WORKERS))["actor"] == 0


def test_the_simulator_has_the_settings_of_the_run() -> None:
    made = objects(training_run(**SPECS["simulator"]))
    container, plain = simulator_of(made), simulator_of(objects(training_run(**SPECS["simulator in plain text"])))
    assert (container["name"], container["image"]) == ("robot", "registry/robot:3")
    assert (plain["name"], plain["image"]) == ("simulator", "robot:1")
    # `learner.yaml` is a file of the simulator, and no address.
    assert (container["command"], container["args"]) == (SIMULATOR["command"], SIMULATOR["args"])
    assert not {"command", "args"} & set(plain)
    assert all(each in container["env"] for each in SIMULATOR["env"])
    assert {"name": "ACTOR_ADDRESS", "value": "127.0.0.1:50053"} in container["env"]
    assert container["resources"]["requests"]["cpu"] == "500m"
    assert container["resources"]["limits"] == {**plain["resources"]["limits"], "memory": "2Gi"}
    assert SIMULATOR["volumeMounts"][0] in container["volumeMounts"]
    assert container["securityContext"] == plain["securityContext"]
    (workload,) = (each for each in made if each["metadata"]["name"] == "alpha-actor" and each["kind"] == "Deployment")
    kubernetes_validate.validate(workload, "1.32", strict=True)


def test_the_actor_keeps_its_own_settings() -> None:
    actor, _ = pod(objects(training_run(**SPECS["simulator"])), "actor")["containers"]
    assert actor["name"] == "actor"
    assert "--external" in actor["args"]
    assert "--learner=alpha-learner:50051" in actor["args"]
    assert {"name": "DATA", "value": "/data"} in actor["env"]
    assert {"name": "ACTORQ_TRANSPORT__RUN", "value": "lab.alpha"} in actor["env"]


def test_a_run_without_a_simulator_has_none() -> None:
    made = objects(training_run())
    (actor,) = pod(made, "actor")["containers"]
    assert "--external" not in actor["args"]
    assert "evaluator" in replicas(made)


@pytest.mark.parametrize(("mode", "certificates"), [("none", False), ("generated", True), ("issuer", True)])
def test_the_simulator_has_certificates_if_the_run_has(mode: str, certificates: bool) -> None:
    tls = {"mode": mode, **({"issuer": {"name": "ca"}} if mode == "issuer" else {})}
    made = objects(training_run(**ROBOT, actors={"external": {"image": "robot:1"}}, tls=tls))
    variables = {each["name"] for each in simulator_of(made)["env"]}
    assert ("ACTOR_CERTIFICATES" in variables) is certificates
    assert not any(name.startswith("ACTORQ_") for name in variables), "the simulator is no service of ActorQ"
    secrets = {each["secret"]["secretName"] for each in pod(made, "actor")["volumes"] if "secret" in each}
    expected = {f"alpha-{role}-tls" for role in ("actor", "evaluator", "simulator")}
    assert secrets == (expected if certificates else set())


def test_an_issuer_makes_the_certificate_of_the_simulator() -> None:
    made = objects(training_run(**SPECS["simulator with an issuer"]))
    assert found(made, "Certificate", "alpha-simulator")["spec"]["secretName"] == "alpha-simulator-tls"
    (uri,) = found(made, "Certificate", "alpha-evaluator")["spec"]["uris"]
    assert uri == "spiffe://actorq/run/lab.alpha/role/evaluator/alpha-actor-"


def test_nodes_pull_the_simulator_by_the_operators_policy() -> None:
    made = objects(training_run(**SPECS["simulator"]), images=Images("registry.example/rl", pull_policy="Always"))
    assert simulator_of(made)["imagePullPolicy"] == "Always"
    # The operator's registry is for ActorQ's own images.
    assert simulator_of(made)["image"] == "registry/robot:3"


@pytest.mark.parametrize(
    ("settings", "fact"),
    [
        (
            {"env": [{"name": "ACTOR_ADDRESS", "value": "other"}]},
            r"spec\.actors\.external\.env: ACTOR_ADDRESS is taken",
        ),
        (
            {"volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}]},
            r"spec\.actors\.external\.volumeMounts: /tmp is taken",
        ),
        (
            {"resources": {"requests": {"cpu": 4}}},
            r"spec\.actors\.external\.resources: requests\.cpu is 4, above limits\.cpu, 1",
        ),
    ],
)
def test_settings_that_conflict_with_the_manifests_are_refused_in_one_line(settings: Object, fact: str) -> None:
    pod_settings = {"volumes": [{"name": "scratch", "emptyDir": {}}]}
    actors = {"external": {"image": "robot:1", **settings}, "pod": pod_settings}
    with pytest.raises(UserError, match=fact) as caught:
        objects(training_run(**ROBOT, actors=actors))
    assert "\n" not in str(caught.value)
