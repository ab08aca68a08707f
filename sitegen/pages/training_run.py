"""The reference of the TrainingRun: the fields of its specification and its status, from the models and the schema."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from actorq_apps.operator.resource.amounts import IMMUTABLE, QUANTITIES
from actorq_apps.operator.resource.training_run import TrainingRunSpec
from actorq_apps.operator.status.conditions import STATES
from sitegen.definition import definition
from sitegen.markdown import names, table

_RANGES = (
    ("minimum", "maximum", "{}"),
    ("minItems", "maxItems", "{} items"),
    ("minLength", "maxLength", "{} characters"),
)


def specification() -> str:
    """A section for each section of a specification. A section of several services appears once."""
    tree = TrainingRunSpec.model_json_schema()
    places = _places(tree)
    # Sections with one path come first.
    ordered = sorted(places.items(), key=lambda each: len(each[1]) > 1)
    parts = [_section(tree, tree, ["spec"], places)]
    parts += [_section(tree, tree["$defs"][model], found, places) for model, found in ordered]
    return "\n\n".join(parts)


def status() -> str:
    """The fields that the operator writes."""
    tree = _schema()["status"]["properties"]
    rows = [(f"`{path}`", _kind(field), field["description"]) for path, field in _flat(tree, "")]
    return table(("field of `status`", "type", "meaning"), rows)


def states() -> str:
    """All values of `status.state`, as code."""
    return f"`status.state` is one of {names(STATES)}."


def columns() -> str:
    """The columns of `kubectl get trainingruns`."""
    found = definition()["spec"]["versions"][0]["additionalPrinterColumns"]
    return table(
        ("column", "field", "meaning"),
        [(each["name"], f"`{each['jsonPath'][1:]}`", each["description"]) for each in found],
    )


def paths() -> list[str]:
    """The paths of all fields of a specification. Fields of shared sections appear with each of their paths."""
    return [path for path, _ in _flat(_schema()["spec"]["properties"], "spec.")]


@cache
def _schema() -> dict[str, Any]:
    found: dict[str, Any] = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    return found


def _flat(properties: dict[str, Any], above: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, field in properties.items():
        yield f"{above}{name}", field
        inner = field.get("items", field)
        if "properties" in inner:
            yield from _flat(inner["properties"], f"{above}{name}{'[].' if 'items' in field else '.'}")


def _places(tree: dict[str, Any]) -> dict[str, list[str]]:
    """The models of sections with their paths, in the order of the specification."""
    found: dict[str, list[str]] = {}

    def walk(properties: dict[str, Any], above: str) -> None:
        for name, field in properties.items():
            model, path = _model(field), f"{above}.{name}"
            if model is not None:
                found.setdefault(model, []).append(path + ("[]" if _only(field).get("type") == "array" else ""))
                walk(tree["$defs"][model]["properties"], path)

    walk(tree["properties"], "spec")
    return found


def _section(tree: dict[str, Any], model: dict[str, Any], paths: list[str], places: dict[str, list[str]]) -> str:
    """Heading, description and table of a section. paths: its paths in a specification."""
    required = model.get("required", ())
    rows = [
        (f"`{name}`", *_type(field, places), "required" if name in required else _default(field), _meaning(tree, field))
        for name, field in model["properties"].items()
    ]
    ends = dict.fromkeys(".".join(path.split(".")[-2:]) for path in paths)
    also = f" Fields of this type: {names(ends)}." if len(paths) > 1 else ""
    head = f"### `{_title(paths)}` {{#{_anchor(paths)}}}\n\n{model['description']}{also}"
    return f"{head}\n\n{table(('field', 'type', 'bounds', 'default', 'meaning'), rows)}"


def _title(paths: list[str]) -> str:
    return paths[0] if len(paths) == 1 else paths[0].rpartition(".")[2]


def _anchor(paths: list[str]) -> str:
    return _title(paths).replace(".", "-").replace("[]", "").lower()


def _only(field: dict[str, Any]) -> dict[str, Any]:
    """The schema of the field without null."""
    return {**field, **next((each for each in field.get("anyOf", ()) if each != {"type": "null"}), {})}


def _model(field: dict[str, Any]) -> str | None:
    field = _only(field)
    reference = str(field.get("$ref") or field.get("items", {}).get("$ref", ""))
    name = reference.rpartition("/")[2]
    return name if name and name != "JsonValue" else None


def _type(field: dict[str, Any], places: dict[str, list[str]]) -> tuple[str, str]:
    """Type and bounds."""
    field = _only(field)
    if (model := _model(field)) is not None:
        link = f"[{_title(places[model]).removesuffix('[]')}](#{_anchor(places[model])})"
        return (f"list of {link}" if field.get("type") == "array" else link), _bounds(field)
    return _kind(field), _bounds(field)


def _kind(field: dict[str, Any]) -> str:
    if "enum" in field:
        return names(field["enum"])
    if "const" in field:
        return names([field["const"]])
    if field.get("pattern") in QUANTITIES:
        return "amount"
    kind = {"string": "text", "object": "mapping", "array": "list"}
    return "time" if field.get("format") == "date-time" else kind.get(field["type"], field["type"])


def _bounds(field: dict[str, Any]) -> str:
    found = []
    for low, high, text in _RANGES:
        if low in field or high in field:
            ends = [f"{word} {field[key]:,}" for key, word in ((low, "at least"), (high, "at most")) if key in field]
            found.append(text.format(", ".join(ends)))
    if "maxProperties" in field:
        found.append(f"at most {field['maxProperties']} entries")
    return ", ".join(found)


def _default(field: dict[str, Any]) -> str:
    default = field.get("default")
    if default is None or default in ({}, []) or isinstance(default, dict):
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _meaning(tree: dict[str, Any], field: dict[str, Any]) -> str:
    model = tree["$defs"].get(_model(field), {})
    described = str(field.get("description") or model.get("description", ""))
    fixed = bool(field.get(IMMUTABLE)) and "cannot be changed" not in described
    return described + ("; cannot be changed" if fixed else "")
