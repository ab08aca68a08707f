"""A TrainingRun that cannot become a run is refused with one line, before any pod exists."""

from typing import Any

import pytest

from actorq.errors import UserError
from actorq_apps.operator.naming import LONGEST_RUN_NAME
from actorq_apps.operator.render import objects
from actorq_apps.operator.resource.training_run import TrainingRun
from tests.actorq_apps.operator.training_runs import SPECS, Object, manifest, training_run

OFFLINE: Object = {"algorithm": "dqn", "config": SPECS["offline"]["config"]}


@pytest.mark.parametrize("name", SPECS)
def test_a_run_is_read_from_its_object(name: str) -> None:
    run = TrainingRun.of(manifest(**SPECS[name]))
    assert (run.name, run.namespace, run.uid) == ("alpha", "lab", "uid-of-alpha")


@pytest.mark.parametrize(
    ("spec", "fact"),
    [
        ({"environment": ""}, r"'spec\.environment'.* 1 .*''"),
        ({"actor": {}}, r"'spec\.actor'"),
        ({"actors": {"replica": 3}}, r"'spec\.actors\.replica'.*'spec\.actors\.replicas'"),
        ({"actors": {"replicas": -1}}, r"'spec\.actors\.replicas'.* 0 .* -1"),
        ({"actors": 3}, r"'spec\.actors'.*section.* 3"),
        (
            {"activeDeadlineSeconds": 60, "config": {"max_seconds": 5}},
            r"spec\.config\.max_seconds.*spec\.activeDeadlineSeconds",
        ),
        ({"actors": {"pod": {"env": [{"name": "A"}]}}}, r"env A\b.* value, valueFrom.* 0"),
        (
            {"learner": {"pod": {"env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}}},
            r"env A\b.* value, valueFrom.* 2",
        ),
        ({"actors": {"pod": {"volumes": [{"name": "v"}]}}}, r"volume v\b.*one of"),
        ({"actors": {"pod": {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}}}, r"\bv .*volumes"),
        ({"actors": {"pod": {"labels": {"actorq.dev/run": "other"}}}}, r"actorq\.dev/run .*operator"),
        ({"actors": {"tolerations": [{"operator": "Like"}]}}, r"'spec\.actors\.tolerations\.0\.operator'.*'Like'"),
        ({"learner": {"storage": "many"}}, r"'spec\.learner\.storage'.*'many'"),
        ({"learner": {"storage": 0}}, r"'spec\.learner\.storage'.* above 0 .* 0"),
        ({"quantizer": {"storage": -1}}, r"'spec\.quantizer\.storage'.* above 0 .* -1"),
        ({"actors": {"resources": {"requests": {"cpu": -1}}}}, r"requests.*cpu'.* -1"),
        (
            {"config": {"environment_args": {"x": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}}},
            " 32 levels",
        ),
        ({"learner": {"resources": {"limits": {"cpu": True}}}}, r"'spec\.learner\.resources\.limits\.cpu'.*True"),
        ({"images": {"actor": "a b"}}, r"'spec\.images\.actor'.*'a b'"),
        ({"imagePullSecrets": ["registry"]}, r"'spec\.imagePullSecrets\.0'.*section.*registry"),
        ({"evaluator": {"replicas": 2}}, r"'spec\.evaluator\.replicas'.* 2"),
        ({"tls": {"mode": "issuer"}}, r"tls\.mode .*issuer.*tls\.issuer"),
        ({"tls": {"issuer": {"name": "ca"}}}, r"tls\.mode .*generated.*tls\.issuer"),
        ({"policyExport": {"url": "https://bucket"}}, r"'spec\.policyExport\.url'.*https://bucket"),
        ({"policyExport": {"url": "s3://a/b", "scheme": "auto"}}, r"spec\.config.*'policy_export\.scheme'.*'auto'"),
        (
            {"policyExport": {"url": "s3://a/b"}, "config": {"policy_export": {"url": "s3://a/c"}}},
            r"spec\.config\.policy_export.*spec\.policyExport",
        ),
        ({"config": {"sed": 1}}, r"spec\.config.*'sed'.*'seed'"),
        ({"algorithm": "xqc", "config": {"xqc": {"batch_size": 4}}}, r"xqc\.batch_size .* 8, .*statistics.* 4\b"),
        ({"config": {"seed": -1}}, r"spec\.config.*'seed'.* 0 .* -1"),
        (
            {"config": {"environment": "Pong"}},
            r"spec\.config\.environment .*'Pong'.*spec\.environment .*'CartPole-v1'",
        ),
        (
            {"algorithm": "dqn", "config": {"algorithm": "sac"}},
            r"spec\.config\.algorithm .*'sac'.*spec\.algorithm .*'dqn'",
        ),
        (
            {"learner": {"gpu": 1}, "config": {"learner": {"device": "cpu"}}},
            r"spec\.config\.learner\.device .*cpu.*spec\.learner\.gpu .* 1",
        ),
        ({"config": {"learner": {"device": "cuda"}}}, r"spec\.config\.learner\.device .*cuda.*spec\.learner\.gpu .* 0"),
        (
            {"actors": {"external": {"image": "robot:1"}}},
            r"actors\.external: CartPole-v1 has environments of its own: .*external/robot",
        ),
        ({"environment": "external/robot"}, r"environment: external/robot needs actors\.external .*image"),
        (
            {"environment": "external/robot", "actors": {"external": {"image": "robot:1", "name": "actor"}}},
            r"external\.name: actor is the name .*another",
        ),
        (
            {
                "environment": "external/robot",
                "actors": {"external": {"image": "robot:1", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}},
            },
            r"external\.volumeMounts: v is none of .*actors\.pod\.volumes",
        ),
        ({"environment": "external/robot", "actors": {"external": {}}}, r"'spec\.actors\.external\.image'"),
        (
            {"environment": "external/robot", "actors": {"external": {"image": "robot:1", "livenessProbe": {}}}},
            r"'spec\.actors\.external\.livenessProbe'",
        ),
        ({"config": {"learner": 3}, "learner": {"gpu": 1}}, r"spec\.config.*'learner'.*section.* 3"),
        (
            {"algorithm": "dqn", "config": {"dataset": "cart-pole"}},
            r"spec\.config\.dataset: .*absolute path.*'cart-pole'",
        ),
        (OFFLINE, r"spec\.actors\.replicas: expected 0, got 2: .*an offline run has no actors"),
        (
            {**OFFLINE, "actors": {"replicas": 0}, "evaluator": {"replicas": 0}},
            r"spec\.evaluator\.replicas: expected 1, got 0: .*an offline run begins with its evaluator",
        ),
    ],
)
def test_reports_a_wrong_specification_in_one_line(spec: Object, fact: str) -> None:
    with pytest.raises(UserError, match=fact) as caught:
        training_run(**spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "fact"),
    [
        (
            {"actors": {"resources": {"requests": {"cpu": 4}}}},
            r"spec\.actors\.resources.*requests\.cpu .* 4\b.*limits\.cpu.* 1\b",
        ),
        ({"config": {"transport": {"drain_s": 45}}}, r"transport\.drain_s .* 45 s.*Deployment alpha-"),
    ],
)
def test_reports_settings_that_conflict_with_the_manifests_in_one_line(spec: Object, fact: str) -> None:
    with pytest.raises(UserError, match=fact) as caught:
        objects(training_run(**spec))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spec", [None, 3, [], "x"])
def test_reports_an_object_without_a_specification_in_one_line(spec: Any) -> None:
    with pytest.raises(UserError, match=r"^spec: .*section"):
        TrainingRun.of({**manifest(), "spec": spec})


@pytest.mark.parametrize("name", ["", "1st", "a.b", "Alpha", "alpha-", "a" * (LONGEST_RUN_NAME + 1)])
def test_refuses_names_that_a_runs_objects_cannot_have(name: str) -> None:
    with pytest.raises(UserError, match=f"name of the run.* 43 .*'{name}'"):
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
    with pytest.raises(UserError, match=r"namespace.* 81 .* 63\b"):
        objects(training_run("a" * 40, "n" * 40))
