"""Who may import whom, and other rules of all sources: read from the sources, and seen in real processes."""

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SERVICES = ("learner_service", "quantizer_service", "actor_service")
APPS = "actorq_apps"
ROOMS = ("actorq", *SERVICES, APPS)

# A library and the only rooms that may import it.
HOMES = {
    "torch": {"learner_service"},
    "onnxscript": {"learner_service"},
    "mlflow": {"learner_service"},
    "wandb": {"learner_service"},
    "obstore": {"learner_service"},
    "onnx": {"learner_service", "quantizer_service", "actorq"},
    "onnxruntime": {"quantizer_service", "actor_service", "actorq"},
    # Minari describes its data sets with the spaces of gymnasium.
    "gymnasium": {"actor_service", "learner_service"},
    "minari": {"learner_service"},
    "h5py": {"learner_service"},
    "dm_control": {"actor_service"},
    "mujoco": {"actor_service"},
    "ale_py": {"actor_service"},
    "envpool": {"actor_service"},
    "pettingzoo": {"actor_service"},
    "av": {"actor_service"},
    "codecarbon": {APPS},
    "kubernetes": {APPS},
    "jsonpatch": {APPS},
    "scipy": {APPS},
    "matplotlib": {APPS},
    "optuna": {APPS},
    "rich": {APPS, "quantizer_service"},
    "IPython": {APPS},
}
SINKS = tuple(f"learner_service.reporting.sinks.{name}_sink" for name in ("mlflow", "wandb"))
GENERATED = {"v1", "externalscaler"}
PICKLES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}


@cache
def sources(room: str) -> list[Path]:
    files = sorted((ROOT / room).rglob("*.py"))
    assert files, room
    return files


@cache
def nodes(file: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))))


@pytest.fixture(autouse=True, scope="module")
def _forget_the_sources() -> Iterator[None]:
    yield
    nodes.cache_clear()


@cache
def imported(file: Path) -> set[str]:
    """The full names of all modules that a file imports, also inside functions."""
    names: set[str] = set()
    for node in nodes(file):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            assert node.module
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def packages(file: Path) -> set[str]:
    return {name.partition(".")[0] for name in imported(file)}


def offenders(room: str, forbidden: set[str]) -> dict[str, set[str]]:
    """The files of a room that import a forbidden package, and which."""
    found = {str(file.relative_to(ROOT)): packages(file) & forbidden for file in sources(room)}
    return {file: names for file, names in found.items() if names}


@pytest.mark.parametrize("room", SERVICES)
def test_services_do_not_import_each_other(room: str) -> None:
    assert not offenders(room, set(SERVICES) - {room})


def test_the_floors_import_what_is_below_them() -> None:
    """Services and applications stand on actorq, and applications start services as processes."""
    # The package's front door names the floor above, for types, and imports it on demand.
    assert offenders("actorq", {*SERVICES, APPS}) == {"actorq/__init__.py": {APPS}}
    # A program that trains in its own process has the actor's code there.
    embedding = {f"{APPS}/python/environments.py", f"{APPS}/python/run.py", f"{APPS}/python/train.py"}
    assert offenders(APPS, set(SERVICES)) == {file: {"actor_service"} for file in sorted(embedding)}
    for file in embedding:
        assert {name for name in imported(ROOT / file) if name.startswith("actor_service")} == {
            "actor_service.embedded",
            *(f"actor_service.embedded.{name}" for name in ("OwnEnvironment", "EmbeddedActor")),
        } & imported(ROOT / file)
    for room in SERVICES:
        assert not offenders(room, {APPS})


def test_modules_that_are_named_in_strings_exist() -> None:
    """A module that is started as a process, or imported late, is named in a string."""
    known = {name_of(file) for room in (*ROOMS, "benchmarks") for file in sources(room)}
    named = [
        (file, node.value.partition(":")[0])
        for room in (*ROOMS, "benchmarks", "sitegen")
        for file in sources(room)
        for node in nodes(file)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.fullmatch(rf"({'|'.join(ROOMS)})(\.[a-z_]+)+(:[A-Za-z_]+)?", node.value)
    ]
    assert len(named) > 20
    for file, name in named:
        assert name in known or name.rpartition(".")[0] in known, f"{file}: {name}"


def test_nothing_names_a_module_above_it() -> None:
    above = {"actorq": f"{APPS}|benchmarks", APPS: "benchmarks", **dict.fromkeys(SERVICES, f"{APPS}|benchmarks")}
    named = {
        node.value
        for room, names in above.items()
        for file in sources(room)
        for node in nodes(file)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.match(rf"({names})\.\w", node.value)
    }
    # The actor of `--schemes torch`, a baseline that only the sources have; and the front door.
    assert named == {
        "benchmarks.speedup.torch_actor",
        *(f"actorq_apps.python.{name}" for name in ("datasets", "events", "run", "train")),
    }


def test_only_the_room_of_quantization_imports_onnx_in_actorq() -> None:
    found = offenders("actorq", {"onnx"})
    assert found
    assert all(name.startswith("actorq/quantization/") for name in found)


def test_only_one_module_of_actorq_imports_onnxruntime() -> None:
    assert offenders("actorq", {"onnxruntime"}) == {"actorq/arithmetic/sessions.py": {"onnxruntime"}}


def test_no_actor_imports_the_room_of_quantization() -> None:
    for room in ("actor_service", "actorq"):
        for file in sources(room):
            if not file.is_relative_to(ROOT / "actorq" / "quantization"):
                assert not any(name.startswith("actorq.quantization") for name in imported(file)), file


@pytest.mark.parametrize("room", [*ROOMS, "benchmarks"])
def test_no_folder_shows_more_than_fourteen_modules(room: str) -> None:
    crowded = {
        str(folder.relative_to(ROOT)): count
        for folder, count in Counter(file.parent for file in sources(room)).items()
        if count > 14 and folder.name not in GENERATED
    }
    assert not crowded


@pytest.mark.parametrize("room", ROOMS)
def test_nothing_that_runs_imports_tests_or_benchmarks(room: str) -> None:
    assert not offenders(room, {"tests", "benchmarks", "pytest", "hypothesis"})


@pytest.mark.parametrize("library", HOMES)
def test_a_library_lives_only_in_its_rooms(library: str) -> None:
    for room in set(ROOMS) - HOMES[library]:
        assert not offenders(room, {library})


def test_these_rules_see_imports() -> None:
    assert "learner_service/algorithms/dqn.py" in offenders("learner_service", {"torch"})
    assert offenders("actor_service", {"gymnasium"})


@pytest.mark.parametrize("room", [*ROOMS, "benchmarks", "tests"])
def test_nothing_is_pickled(room: str) -> None:
    assert not offenders(room, PICKLES)


def test_no_process_waits_for_its_threads_at_its_end() -> None:
    """A process whose main thread has failed would never end if a thread of it hangs, for example in a call."""
    made = [
        (f"{file}:{node.lineno}", {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}.get("daemon"))
        for room in ROOMS
        for file in sources(room)
        for node in nodes(file)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Thread", "threading.Thread")
    ]
    assert len(made) > 10
    assert [place for place, daemon in made if daemon != "True"] == []


def test_torch_and_numpy_load_no_pickles() -> None:
    # torch.save and torch.load pickle; numpy does when it is allowed to.
    for room in ROOMS:
        for file in sources(room):
            for node in nodes(file):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    assert (node.value.id, node.attr) not in {("torch", "save"), ("torch", "load")}, file
                if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                    assert isinstance(node.value, ast.Constant), file
                    assert node.value.value is False, file


def test_only_the_transport_makes_channels_and_servers() -> None:
    for room in ROOMS:
        for file in sources(room):
            if file.is_relative_to(ROOT / "actorq" / "transport"):
                continue
            called = {node.attr for node in nodes(file) if isinstance(node, ast.Attribute)}
            assert not called & {"insecure_channel", "secure_channel", "add_insecure_port", "add_secure_port"}, file


def test_only_the_wire_makes_messages_of_domain_objects() -> None:
    # Requests and responses are the envelopes of an RPC; the transport cuts blobs into parts.
    for room in ROOMS:
        for file in sources(room):
            if any(file.is_relative_to(ROOT / "actorq" / name) for name in ("wire", "transport", *GENERATED)):
                continue
            for node in nodes(file):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    module = node.func.value
                    if isinstance(module, ast.Name) and module.id.endswith("_pb2"):
                        assert node.func.attr.endswith(("Request", "Response")), f"{file}: {node.func.attr}"


def test_domain_objects_know_no_grpc() -> None:
    for room in ("domain", "config", "quantization", "statefiles"):
        for file in sources(f"actorq/{room}"):
            # ONNX models are protobuf.
            assert not packages(file) & ({"grpc"} if room == "quantization" else {"grpc", "google"}), file
            assert not any(module.startswith("actorq.v1") for module in imported(file)), file


def test_no_module_imports_itself_by_way_of_others() -> None:
    files = {name_of(file): file for room in (*ROOMS, "benchmarks") for file in sources(room)}
    imports = {name: (imported(file) & files.keys()) - {name} for name, file in files.items()}
    # The front door imports the floor above on demand.
    imports["actorq"] = {name for name in imports["actorq"] if not name.startswith(APPS)}
    # The __init__ of a package imports its modules, and these import the package by its name: no circle.
    modules = {name: {each for each in found if not name.startswith(f"{each}.")} for name, found in imports.items()}
    try:
        TopologicalSorter(modules).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("room", ROOMS)
def test_folders_of_a_room_import_each_other_in_one_direction(room: str) -> None:
    """A folder, or a module beside the folders, stands above those that it imports."""
    known = {name_of(file) for file in sources(room)}

    def part(module: str) -> str:
        return ".".join(module.split(".")[:2])

    found: dict[str, set[str]] = {}
    for file in sources(room):
        below = {part(name) for name in imported(file) & known} - {part(name_of(file)), room}
        found.setdefault(part(name_of(file)), set()).update(below)
    # The package itself offers some of its parts.
    found.pop(room, None)
    try:
        TopologicalSorter(found).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def name_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def modules(room: str, without: tuple[str, ...] = ()) -> list[str]:
    """All modules of a room that can be imported, without those below some names."""
    names = [name_of(file) for file in sources(room) if file.name != "__main__.py"]
    return [name for name in names if not any(f"{name}.".startswith(f"{prefix}.") for prefix in without)]


@pytest.mark.parametrize(
    ("room", "without", "absent"),
    [
        ("actor_service", (), {"torch", "onnx", "onnxscript", "learner_service", "quantizer_service"}),
        ("quantizer_service", (), {"torch", "gymnasium", "learner_service", "actor_service"}),
        # Sinks are programs of their own.
        ("learner_service", SINKS, {"gymnasium", "onnxruntime", "quantizer_service", "actor_service"}),
        (
            "actorq",
            ("actorq.quantization",),
            {"torch", "onnx", "onnxruntime", "gymnasium", "codecarbon", "scipy", "matplotlib", *SERVICES},
        ),
    ],
    ids=["actor_service", "quantizer_service", "learner_service", "actorq"],
)
def test_a_process_loads_only_what_its_room_may(room: str, without: tuple[str, ...], absent: set[str]) -> None:
    script = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint(*sys.modules)"
    names = modules(room, without)
    completed = subprocess.run(
        [sys.executable, "-c", script, *names],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(completed.stdout.split())
    assert loaded >= set(names)
    assert not loaded & absent
