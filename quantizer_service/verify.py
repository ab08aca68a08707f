"""Checks a store of policies without changing it, for `actorq verify`."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from actorq.domain.policy import Variant
from actorq.errors import InvalidInputError, UnreadableError
from actorq.process import EXIT_OK
from actorq.statefiles import policies as stored
from actorq.statefiles.findings import Finding, check_document, check_twice, faulty, report
from actorq.text import return_text

_LEAP = "new version numbers start far above the known ones"
_AGAIN = "the learner sends the graph again; its versions return after the next start"
_TAKEN = "the version is not served, its number is not used again, and the learner publishes newer versions"
_NO_EVALUATION = "the version counts as not evaluated"


def verify(directory: Path) -> list[Finding]:
    """The whole and damaged parts of a store, and how a resume handles them. Empty for a missing folder."""
    graphs, whole = _graphs(directory / "graphs")
    return [
        *check_twice(directory / "run.json", _run, "the store is refused"),
        *_high_water(directory),
        *(found.below("graphs") for found in graphs),
        *(
            found.below(folder.name)
            for folder in sorted(directory.glob("[0-9]*"))
            if folder.is_dir()
            for found in _version(folder, whole)
        ),
    ]


def _run(values: dict[str, Any]) -> str:
    if (written := values.get("format", 1)) not in stored.STORE_FORMATS:
        raise InvalidInputError(
            f"expected format {stored.STORE_FORMATS[0]}, got {written} of another version of ActorQ"
        )
    return f"run {values['run_id']}"


def _high_water(directory: Path) -> Iterator[Finding]:
    path = directory / "high_water.json"
    if path.exists() or any(directory.glob("[0-9]*")):
        yield check_document(path, lambda values: f"versions up to {values['mark']} are used", _LEAP)


def _graphs(directory: Path) -> tuple[list[Finding], set[str]]:
    """The findings, and the digests of the readable graphs."""
    found, whole = [], set()
    for path in sorted(directory.glob("[!.]*.json")):
        try:
            stored.read_json(path)
            size = len(stored.read_verified(path.with_suffix(".onnx"), bytes.fromhex(path.stem)))
        except (InvalidInputError, UnreadableError, ValueError) as error:
            found.append(faulty(path.stem[:16], error, _AGAIN, _short(error)))
        else:
            whole.add(path.stem)
            found.append(Finding(path.stem[:16], "whole", f"graph of {size:,} bytes"))
    return found, whole


def _version(folder: Path, graphs: set[str]) -> Iterator[Finding]:
    variants = stored.emitted_variants(folder)
    damaged = [*_checkpoint(folder, graphs, variants)]
    for variant in variants:
        try:
            stored.read_policy(folder, variant)
        except (InvalidInputError, UnreadableError) as error:
            damaged.append(faulty(f"policy-{variant}.json", error, _TAKEN, _short(error)))
    evaluation = folder / "evaluation.json"
    returned = ""
    if evaluation.exists():
        found = check_document(evaluation, _return_of, _NO_EVALUATION)
        if found.state == "whole":
            returned = found.detail
        else:
            damaged.append(found)
    yield from damaged or [Finding("", "whole", ", ".join(["fp32 tensors", *map(str, variants)]) + returned)]


def _return_of(evaluation: Mapping[str, Any]) -> str:
    return f", return {return_text(evaluation['mean_return'])}"


def _checkpoint(folder: Path, graphs: set[str], variants: tuple[Variant, ...]) -> Iterator[Finding]:
    path = folder / "checkpoint.json"
    try:
        tree = stored.read_json(path)
        stored.read_verified(path.with_suffix(".safetensors"), bytes.fromhex(tree["sha256"]))
    except (InvalidInputError, UnreadableError, KeyError, TypeError, ValueError) as error:
        yield faulty(path.name, error, _TAKEN, _short(error))
        return
    if (digest := stored.graph_digest_of(tree)) not in graphs:
        yield Finding(path.name, "missing", f"its graph {digest[:12]} is not in the store", _AGAIN)
    try:
        stored.require_emitted(folder, tree, variants)
    except InvalidInputError as error:
        yield Finding("", "missing", str(error).removeprefix(f"{folder}: "), _TAKEN)


def _short(error: Exception) -> str:
    """The fault in a message, without the advice for a starting quantizer."""
    return str(error).partition("; ")[0]


def run() -> int:
    """Print the findings for the folder in the argument."""
    sys.stdout.write(report(verify(Path(sys.argv[1]))))
    return EXIT_OK
