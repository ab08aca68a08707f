"""The Dockerfile fits the manifests."""

import re
import subprocess

import pytest

from actorq import __version__
from tests.k8s.rendered_manifests import K8S, ROOT, containers, render

LINES = (ROOT / "Dockerfile").read_text("utf-8").splitlines()


def test_services_run_as_the_numeric_user_of_the_manifests() -> None:
    users = [line.split()[1] for line in LINES if line.startswith("USER")]
    assert users == ["10001:10001"]
    for pod, _ in containers(render(K8S / "overlays" / "development")):
        security = pod["securityContext"]
        assert f"{security['runAsUser']}:{security['runAsGroup']}" == users[0]


def test_nothing_names_a_registry_and_the_base_is_pinned() -> None:
    base = next(line for line in LINES if line.startswith("ARG PYTHON_IMAGE="))
    assert re.fullmatch(r"ARG PYTHON_IMAGE=python:\d+\.\d+-slim", base)
    assert not any("://" in line for line in LINES)


def test_images_name_their_base_in_a_label_and_make_can_change_it() -> None:
    stage = "\n".join(LINES).split("AS service\n")[1].split("\nFROM")[0]
    assert "\nARG PYTHON_IMAGE\n" in stage
    assert 'org.opencontainers.image.base.name="${PYTHON_IMAGE}"' in stage
    command = ["make", "--dry-run", "images", "CONTAINER_BUILD=build", "PYTHON_IMAGE=python@sha256:1"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len([line for line in built if "--build-arg PYTHON_IMAGE=python@sha256:1 " in line]) == 4


def test_the_page_of_images_has_their_base_packages_and_ports() -> None:
    page = (ROOT / "docs" / "reference" / "images.md").read_text("utf-8")
    text = "\n".join(LINES)
    base = re.search(r"^ARG PYTHON_IMAGE=(.+)$", text, re.MULTILINE)
    assert base
    assert f"The base is `{base[1]}`" in page
    default = re.search(r'^ARG ENVIRONMENTS="(.+)"$', text, re.MULTILINE)
    assert default
    rows = re.findall(r"^\| `actorq-(\w+)` \| .* \| (.+) \| (.+) \|$", page, re.MULTILINE)
    assert len(rows) == 4
    for target, extras, ports in rows:
        installed = re.search(rf'AS build-{target}\n(?:.*\n)*?RUN install-actorq "?([\w,]+)', text)
        exposed = re.search(rf"AS {target}\n(?:.*\n)*?EXPOSE (.+)", text)
        assert installed
        assert exposed
        more = default[1].split(",") if target == "actor" else []
        assert re.findall(r"`(.+?)`", extras) == [*installed[1].split(","), *more]
        assert ports.split(", ") == exposed[1].split()


@pytest.mark.parametrize(("target", "port"), [("learner", 50051), ("quantizer", 50052), ("actor", 50053)])
def test_each_service_has_an_image_with_only_its_code(target: str, port: int) -> None:
    text = "\n".join(LINES)
    build = text.split(f"AS build-{target}\n")[1].split("\nFROM")[0]
    assert re.findall(r"COPY (\w+)_service", build) == [target]
    final = text.split(f"AS {target}\n")[1].split("\nFROM")[0]
    assert f"EXPOSE {port} 9090" in final
    assert f'ENTRYPOINT ["python", "-m", "{target}_service"]' in final


def test_images_have_the_version_of_the_manifests() -> None:
    labels = next(line for line in LINES if line.startswith("LABEL"))
    assert f'org.opencontainers.image.version="{__version__}"' in labels
    for _, container in containers(render(K8S / "overlays" / "development")):
        assert container["image"].endswith(f":{__version__}")


def test_the_operators_image_has_the_manifests_in_the_operators_folder() -> None:
    final = "\n".join(LINES).split("AS operator\n")[1]
    copied = dict(re.findall(r"COPY k8s/(\w+) (\S+)", final))
    # In the image, sys.prefix is the virtual environment /opt/actorq.
    assert copied == {name: f"/opt/actorq/share/actorq/k8s/{name}" for name in ("base", "components")}
    assert 'ENTRYPOINT ["python", "-m", "actorq_apps.operator"]' in final
    kept = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert {"!k8s/base", "!k8s/components"} <= set(kept)


def test_files_that_are_copied_into_an_image_are_not_ignored() -> None:
    kept = [line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines()]
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    sources = [source for line in lines for source in line.split()]
    assert len(sources) > 8
    for source in sources:
        assert any(f"{source}/".startswith(f"{each}/") for each in kept), source
