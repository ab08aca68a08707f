"""The components that set the number of actors."""

from pathlib import Path

import pytest

from tests.k8s.rendered_manifests import K8S, of_kind, render, with_components


@pytest.mark.parametrize("components", [("hpa", "keda"), ("keda", "hpa")])
def test_two_autoscalers_of_actors_are_refused(tmp_path: Path, components: tuple[str, str]) -> None:
    with pytest.raises(AssertionError, match=r"/spec/replicas"):
        with_components(tmp_path, "plaintext", *components)


def test_an_autoscaler_targets_the_actors(tmp_path: Path) -> None:
    by_cpu = of_kind(render(K8S / "overlays" / "production"), "HorizontalPodAutoscaler")["actor"]
    assert by_cpu["spec"]["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "actor"}
    by_need = of_kind(with_components(tmp_path, "plaintext", "keda"), "ScaledObject")["actor"]["spec"]
    assert by_need["scaleTargetRef"] == {"name": "actor"}
    (trigger,) = by_need["triggers"]
    assert trigger["metadata"]["scalerAddress"] == "learner.actorq.svc:50051"
    assert "authenticationRef" not in trigger


def test_keda_uses_the_scalers_certificate_if_the_learner_requires_one(tmp_path: Path) -> None:
    objects = with_components(tmp_path, "keda", "mtls")
    (trigger,) = of_kind(objects, "ScaledObject")["actor"]["spec"]["triggers"]
    authentication = of_kind(objects, "TriggerAuthentication")[trigger["authenticationRef"]["name"]]
    secret = of_kind(objects, "Certificate")["scaler"]["spec"]["secretName"]
    assert {each["name"] for each in authentication["spec"]["secretTargetRef"]} == {secret}


def test_an_autoscaler_owns_the_number_of_actors(tmp_path: Path) -> None:
    for objects in (render(K8S / "overlays" / "production"), with_components(tmp_path, "plaintext", "keda")):
        assert "replicas" not in of_kind(objects, "Deployment")["actor"]["spec"]
