"""A TrainingRun adds labels, variables, volumes and places to the pods of a service."""

import pytest

from actorq.errors import UserError
from actorq_apps.operator.render import objects
from actorq_apps.operator.resource.training_run import TrainingRun
from tests.actorq_apps.operator.test_render import pod
from tests.actorq_apps.operator.training_runs import POD, SPECS, manifest, training_run


def test_the_pods_of_a_role_have_their_own_and_the_runs_settings() -> None:
    made = objects(training_run(**SPECS["full"]))
    plain = pod(objects(training_run()), "actor")
    (workload,) = (each for each in made if each["kind"] == "Deployment" and each["metadata"]["name"] == "alpha-actor")
    metadata, actor = workload["spec"]["template"]["metadata"], pod(made, "actor")
    (container,), (own,) = actor["containers"], plain["containers"]
    assert metadata["labels"]["team"] == "rl"
    assert metadata["labels"]["app.kubernetes.io/component"] == "actor"
    assert metadata["annotations"]["note"] == "two\nlines"
    assert all(each in container["env"] for each in (*own["env"], *POD["env"]))
    assert container["envFrom"] == POD["envFrom"]
    assert container["volumeMounts"] == [*own["volumeMounts"], *POD["volumeMounts"]]
    names = [{each["name"] for each in found["volumes"]} for found in (actor, plain)]
    assert names[0] - names[1] == {"games", "scratch"}
    # The manifests already prefer spot nodes.
    assert {"nodeAffinity", "podAntiAffinity"} <= actor["affinity"].keys()
    assert actor["topologySpreadConstraints"] == POD["topologySpreadConstraints"]
    assert (actor["serviceAccountName"], pod(made, "learner")["serviceAccountName"]) == ("reader", "alpha-learner")
    accounts = [each["metadata"]["annotations"] for each in made if each["kind"] == "ServiceAccount"]
    assert all(each["iam.gke.io/gcp-service-account"] == "rl@project" for each in accounts)
    assert "games" not in {each["name"] for each in pod(made, "learner")["volumes"]}


@pytest.mark.parametrize(
    ("settings", "fact"),
    [
        ({"env": [{"name": "HOME", "value": "/"}, {"name": "HOME", "value": "/x"}]}, ""),
        ({"volumes": [{"name": "tmp", "emptyDir": {}}]}, r"spec\.actor\.pod\.volumes.* tmp "),
        (
            {
                "volumes": [{"name": "mine", "emptyDir": {}}],
                "volumeMounts": [{"name": "mine", "mountPath": "/tmp"}],
            },
            r"spec\.actor\.pod\.volumeMounts.* /tmp ",
        ),
    ],
)
def test_a_volume_or_mount_of_a_role_is_not_replaced(settings: dict[str, object], fact: str) -> None:
    run = training_run(actors={"pod": settings})
    if not fact:
        assert objects(run)
        return
    with pytest.raises(UserError, match=fact):
        objects(run)


def test_the_labels_of_a_queue_are_on_workloads_and_pods() -> None:
    tree = manifest()
    tree["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "research", "other": "label"}
    for each in objects(TrainingRun.of(tree)):
        if each["kind"] in ("Deployment", "StatefulSet"):
            for metadata in (each["metadata"], each["spec"]["template"]["metadata"]):
                assert metadata["labels"]["kueue.x-k8s.io/queue-name"] == "research"
                assert "other" not in metadata["labels"]
