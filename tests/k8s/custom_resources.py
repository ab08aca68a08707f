"""Checks a CustomResourceDefinition and its objects like an API server of Kubernetes 1.25 to 1.35.

The rules are those of apiextensions.k8s.io/v1: structural schemas, defaults, and validation rules in CEL. A rule is
evaluated on a value with all of its defaults, but on a default without nested defaults. A rule with `oldSelf` is
evaluated on updates if the old and the new object have the value.
"""

import re
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any, NamedTuple

import jsonschema
from cel_expr_python import cel  # type: ignore[import-untyped]

Object = dict[str, Any]

RULES = "x-kubernetes-validations"
OPEN, INT_OR_STRING = "x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"
_JUNCTORS = ("allOf", "anyOf", "oneOf", "not")
_FORBIDDEN = (
    *("definitions", "dependencies", "deprecated", "discriminator", "id", "patternProperties", "readOnly"),
    *("writeOnly", "xml", "$ref", "uniqueItems", "const", "additionalItems"),
)
_ANY_INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]
_MAX_MESSAGE = 2048


class Place(NamedTuple):
    """A schema in a schema: its path, and whether it is in a list or mapping of unknown length."""

    path: str
    schema: Object
    is_unbounded: bool = False


def places(schema: Object, path: str = "", is_unbounded: bool = False) -> Iterator[Place]:
    """A schema and all structural schemas in it."""
    yield Place(path, schema, is_unbounded)
    for name, each in schema.get("properties", {}).items():
        yield from places(each, f"{path}.{name}" if path else name, is_unbounded)
    if "items" in schema:
        yield from places(schema["items"], f"{path}[]", is_unbounded or "maxItems" not in schema)
    if isinstance(schema.get("additionalProperties"), dict):
        yield from places(schema["additionalProperties"], f"{path}{{}}", is_unbounded or "maxProperties" not in schema)


def definition_faults(definition: Object) -> list[str]:
    """The reasons why the server refuses a definition; empty if it accepts it."""
    faults = []
    for version in definition["spec"]["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        for place in places(schema):
            faults += [f"{place.path}: {fault}" for fault in _structure_faults(place)]
            faults += [f"{place.path}: {fault}" for fault in _default_faults(place)]
            faults += [f"{place.path}: {fault}" for fault in _rule_faults(place)]
    return faults


def stored(tree: Any, schema: Object) -> Any:
    """The stored form of a value: with its defaults and without unknown fields."""
    if isinstance(tree, list) and "items" in schema:
        return [stored(each, schema["items"]) for each in tree]
    if not isinstance(tree, dict):
        return tree
    if "additionalProperties" in schema:
        return {name: stored(value, schema["additionalProperties"]) for name, value in tree.items()}
    if "properties" not in schema:
        return tree
    known = schema["properties"]
    missing = {name: deepcopy(each["default"]) for name, each in known.items() if "default" in each}
    return {name: stored(value, known[name]) for name, value in {**missing, **tree}.items() if name in known}


def faults(tree: Object, schema: Object, before: Object | None = None) -> list[str]:
    """The reasons why the server refuses an object or an update; empty if it accepts it. before: the stored object.
    Unknown fields are refused, as `kubectl` requests.
    """
    found = [f"{'.'.join(map(str, each.path))}: {each.message}" for each in _validator(schema).iter_errors(tree)]
    return found or list(broken_rules(stored(tree, schema), schema, before))


def broken_rules(tree: Any, schema: Object, before: Any = None, path: str = "") -> Iterator[str]:
    """The messages of all rules that a value violates, and the errors of rules that cannot be evaluated."""
    for rule in schema.get(RULES, ()):
        is_transition = "oldSelf" in rule["rule"]
        if is_transition and before is None:
            continue
        if fault := _evaluated(rule["rule"], {"self": tree, **({"oldSelf": before} if is_transition else {})}):
            yield rule["message"] if fault == "false" else f"{path}: {fault} evaluating rule: {rule['message']}"
    known = before if isinstance(before, dict) else {}
    if isinstance(tree, dict):
        inner, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name, value in tree.items():
            if (found := inner.get(name, others)) is not None:
                yield from broken_rules(value, found, known.get(name), f"{path}.{name}" if path else name)
    if isinstance(tree, list) and "items" in schema:
        for value in tree:
            yield from broken_rules(value, schema["items"], None, f"{path}[]")


def compile_fault(rule: str) -> str:
    """The reason why a rule is not a CEL expression; empty if it is one."""
    try:
        _compiled(rule)
    except Exception as error:
        return str(error)
    return ""


@cache
def _compiled(rule: str) -> Any:
    return cel.NewEnv(variables={"self": cel.Type.DYN, "oldSelf": cel.Type.DYN}).compile(rule)


def _evaluated(rule: str, values: Object) -> str:
    """Empty for a true rule, "false" for a false rule, otherwise the error."""
    found = _compiled(rule).eval(data=values)
    if found.type() != cel.Type.BOOL:
        return str(found.value())
    return "" if found.value() else "false"


def _validator(schema: Object) -> Any:
    strict = deepcopy(schema)
    for place in places(strict):
        each = place.schema
        if "properties" in each and not each.get(OPEN) and place.path != "metadata":
            each["additionalProperties"] = False
    return jsonschema.Draft202012Validator(strict)


def _structure_faults(place: Place) -> Iterator[str]:
    schema = place.schema
    is_untyped = schema.get(INT_OR_STRING) or schema.get(OPEN)
    if "type" not in schema and not is_untyped:
        yield "type: required"
    if schema.get(INT_OR_STRING) and "type" in schema:
        yield "type: forbidden beside int-or-string"
    yield from (f"{name}: forbidden" for name in _FORBIDDEN if name in schema)
    if "properties" in schema and "additionalProperties" in schema:
        yield "additionalProperties: forbidden beside properties"
    if schema.get("additionalProperties") is False:
        yield "additionalProperties: may not be false"
    if place.path == "metadata" and (set(schema) - {"type"} or schema["type"] != "object"):
        yield "metadata: may only be an object"
    for junctor in _JUNCTORS:
        if junctor in schema and not (schema.get(INT_OR_STRING) and schema[junctor] == _ANY_INT_OR_STRING):
            yield f"{junctor}: types, descriptions and defaults are forbidden in it"
    for name in schema.get("required", ()):
        if name not in schema.get("properties", {}):
            yield f"required: {name} is no property"
    if schema.get("x-kubernetes-list-type") == "map":
        item = schema["items"]
        for key in schema["x-kubernetes-list-map-keys"]:
            if key not in item.get("required", ()) and "default" not in item["properties"][key]:
                yield f"x-kubernetes-list-map-keys: {key} must be required or have a default"
    if "pattern" in schema:
        try:
            re.compile(schema["pattern"])
        except re.error as error:
            yield f"pattern: {error}"


def _default_faults(place: Place) -> Iterator[str]:
    schema = place.schema
    if "default" not in schema:
        return
    if place.path.split(".")[0] in ("metadata", "apiVersion", "kind") or not place.path:
        yield "default: forbidden"
    yield from (f"default: {error.message}" for error in _validator(schema).iter_errors(schema["default"]))
    # Without the defaults nested in it.
    yield from (f"default: {fault}" for fault in broken_rules(schema["default"], schema, None, place.path))


def _rule_faults(place: Place) -> Iterator[str]:
    for rule in place.schema.get(RULES, ()):
        if fault := compile_fault(rule["rule"]):
            yield f"rule {rule['rule']}: {fault}"
        if not 0 < len(rule["message"]) <= _MAX_MESSAGE or "\n" in rule["message"]:
            yield f"rule {rule['rule']}: the message must be one line"
        if "oldSelf" in rule["rule"] and "[]" in place.path:
            yield f"rule {rule['rule']}: oldSelf cannot be found in a list"
        if place.is_unbounded:
            yield f"rule {rule['rule']}: it costs too much: a list or mapping around it has no bound"
        for name in re.findall(r"\b(?:self|oldSelf)\.(\w+)", rule["rule"]):
            if name not in place.schema.get("properties", {}):
                yield f"rule {rule['rule']}: undefined field {name}"
        if re.search(r"\bself == oldSelf\b", rule["rule"]):
            # The cost of a comparison grows with the size of the value. The server assumes some MB for a string.
            yield from (
                f"rule {rule['rule']}: {inner.path} has no bound"
                for inner in places(place.schema, place.path)
                if _is_boundless(inner.schema)
            )


def _is_boundless(schema: Object) -> bool:
    kind = schema.get("type")
    if kind == "string":
        return "maxLength" not in schema and "enum" not in schema
    return (kind == "array" and "maxItems" not in schema) or (
        "additionalProperties" in schema and "maxProperties" not in schema
    )
