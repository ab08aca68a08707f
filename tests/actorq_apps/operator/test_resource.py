"""A TrainingRun that cannot become a run is refused with one line, before there is any pod."""

from typing import Any

import pytest

from actorq.errors import UserError
from actorq_apps.operator.naming import LONGEST_RUN_NAME
from actorq_apps.operator.render import objects
from actorq_apps.operator.resource.training_run import TrainingRun
from tests.actorq_apps.operator.training_runs import SPECS, Object, manifest, training_run


@pytest.mark.parametrize("name", SPECS)
def test_a_run_is_read_from_its_object(name: str) -> None:
    run = TrainingRun.of(manifest(**SPECS[name]))
    assert (run.name, run.namespace, run.uid) == ("alpha", "lab", "uid-of-alpha")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"environment": ""}, "setting 'spec.environment': String should have at least 1 character, got ''"),
        ({"actor": {}}, "unknown setting 'spec.actor'; did you mean"),
        ({"actors": {"replica": 3}}, "unknown setting 'spec.actors.replica'; did you mean 'spec.actors.replicas'?"),
        ({"actors": {"replicas": -1}}, "'spec.actors.replicas': value should be greater than or equal to 0, got -1"),
        ({"actors": 3}, "setting 'spec.actors': expected a section of settings, got 3"),
        (
            {"activeDeadlineSeconds": 60, "config": {"max_seconds": 5}},
            "spec.config.max_seconds: leave it out, because there is spec.activeDeadlineSeconds",
        ),
        ({"actors": {"pod": {"env": [{"name": "A"}]}}}, "env A: expected one of value, valueFrom, got 0"),
        (
            {"learner": {"pod": {"env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}}},
            "env A: expected one of value, valueFrom, got 2",
        ),
        ({"actors": {"pod": {"volumes": [{"name": "v"}]}}}, "volume v: expected one of"),
        ({"actors": {"pod": {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}}}, "v is none of the volumes here"),
        ({"actors": {"pod": {"labels": {"actorq.dev/run": "other"}}}}, "actorq.dev/run is the operator's own"),
        ({"actors": {"tolerations": [{"operator": "Like"}]}}, "setting 'spec.actors.tolerations.0.operator': "),
        ({"learner": {"storage": "many"}}, "setting 'spec.learner.storage': "),
        ({"learner": {"storage": 0}}, "'spec.learner.storage': expected a size above 0 such as 10Gi, got 0"),
        ({"quantizer": {"storage": -1}}, "'spec.quantizer.storage': expected a size above 0 such as 10Gi, got -1"),
        ({"actors": {"resources": {"requests": {"cpu": -1}}}}, "expected an amount such as 500m, 2 or 4Gi, got -1"),
        (
            {"config": {"environment_args": {"x": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}}},
            "at most 32 levels",
        ),
        ({"learner": {"resources": {"limits": {"cpu": True}}}}, "setting 'spec.learner.resources.limits.cpu': "),
        ({"images": {"actor": "a b"}}, "setting 'spec.images.actor': "),
        ({"imagePullSecrets": ["registry"]}, "setting 'spec.imagePullSecrets.0': expected a section of settings"),
        ({"evaluator": {"replicas": 2}}, "setting 'spec.evaluator.replicas': "),
        ({"tls": {"mode": "issuer"}}, "tls.mode is issuer: tls.issuer is for mode issuer, which needs it"),
        ({"tls": {"issuer": {"name": "ca"}}}, "tls.mode is generated: tls.issuer is for mode issuer"),
        ({"policyExport": {"url": "https://bucket"}}, "setting 'spec.policyExport.url': "),
        ({"policyExport": {"url": "s3://a/b", "scheme": "auto"}}, "spec.config: setting 'policy_export.scheme': "),
        (
            {"policyExport": {"url": "s3://a/b"}, "config": {"policy_export": {"url": "s3://a/c"}}},
            "spec.config.policy_export: leave it out, because there is spec.policyExport",
        ),
        ({"config": {"sed": 1}}, "spec.config: unknown setting 'sed'; did you mean 'seed'?"),
        ({"config": {"seed": -1}}, "spec.config: setting 'seed': value should be greater than or equal to 0, got -1"),
        (
            {"config": {"environment": "Pong"}},
            "spec.config.environment is 'Pong', but spec.environment is 'CartPole-v1'",
        ),
        ({"algorithm": "dqn", "config": {"algorithm": "sac"}}, "spec.config.algorithm is 'sac', but spec.algorithm is"),
        ({"learner": {"gpu": 1}, "config": {"learner": {"device": "cpu"}}}, "spec.config.learner.device is cpu, but"),
        ({"config": {"learner": {"device": "cuda"}}}, "spec.config.learner.device is cuda, but spec.learner.gpu is 0"),
        ({"config": {"learner": 3}, "learner": {"gpu": 1}}, "spec.config: setting 'learner': expected a section"),
    ],
)
def test_a_wrong_specification_is_one_line(spec: Object, reason: str) -> None:
    with pytest.raises(UserError) as caught:
        training_run(**spec)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (
            {"actors": {"resources": {"requests": {"cpu": 4}}}},
            "spec.actors.resources: requests.cpu is 4, above limits.cpu, 1",
        ),
        (
            {"config": {"transport": {"drain_s": 45}}},
            "transport.drain_s is 45 s, but the cluster kills pods of Deployment alpha-",
        ),
    ],
)
def test_settings_that_the_manifests_cannot_keep_are_one_line(spec: Object, reason: str) -> None:
    with pytest.raises(UserError) as caught:
        objects(training_run(**spec))
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spec", [None, 3, [], "x"])
def test_an_object_without_a_specification_is_one_line(spec: Any) -> None:
    with pytest.raises(UserError, match=r"^spec: expected a section of settings"):
        TrainingRun.of({**manifest(), "spec": spec})


@pytest.mark.parametrize("name", ["", "1st", "a.b", "Alpha", "alpha-", "a" * (LONGEST_RUN_NAME + 1)])
def test_names_that_the_objects_of_a_run_cannot_carry_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="name of the run: expected a letter and up to 43 of a-z, 0-9 and inner dashes"):
        training_run(name)


def test_the_longest_name_fits_all_labels() -> None:
    longest = "a" * LONGEST_RUN_NAME
    made = objects(training_run(longest, "lab", relays={"replicas": 1}))
    for each in made:
        if each["kind"] in ("Service", "StatefulSet"):
            # The StatefulSet's controller adds a dash and ten characters in a label of its pods.
            spare = 11 if each["kind"] == "StatefulSet" else 0
            assert len(each["metadata"]["name"]) + spare <= 63


def test_a_name_that_is_too_long_with_its_namespace_is_refused() -> None:
    with pytest.raises(UserError, match="with its namespace it has 81 characters, expected at most 63"):
        objects(training_run("a" * 40, "n" * 40))
