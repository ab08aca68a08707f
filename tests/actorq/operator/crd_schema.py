"""The schema that the API server should have for the fields of a TrainingRun, from the models that read them."""

from typing import Any

from actorq.operator.resource import QUANTITY, TrainingRunSpec

Object = dict[str, Any]

_SAME = ("type", "description", "minimum", "maximum", "minLength", "maxLength", "enum", "pattern")


def of_spec() -> Object:
    """The structural schema of spec."""
    tree = TrainingRunSpec.model_json_schema()
    return _converted(tree, tree["$defs"])


def _converted(tree: Object, models: Object) -> Object:
    described: Object = {key: tree[key] for key in ("description", "default") if key in tree}
    if "$ref" in tree:
        return _converted({**models[tree["$ref"].rpartition("/")[2]], **described}, models)
    if "anyOf" in tree:
        (only,) = (each for each in tree["anyOf"] if each != {"type": "null"})
        return _converted({**only, **described}, models)
    found: Object = {key: tree[key] for key in _SAME if key in tree}
    if found.get("pattern") == QUANTITY:
        del found["type"]
        found |= {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
    if "properties" in tree:
        found["properties"] = {name: _converted(each, models) for name, each in tree["properties"].items()}
        if "required" in tree:
            found["required"] = tree["required"]
    elif tree.get("type") == "object":
        # Any tree of settings, or a mapping of names.
        values = tree["additionalProperties"]
        found |= (
            {"x-kubernetes-preserve-unknown-fields": True}
            if values.get("$ref", "").endswith("JsonValue") or not values
            else {"additionalProperties": _converted(values, models)}
        )
    if "items" in tree:
        found["items"] = _converted(tree["items"], models)
    # A section without defaults of its own needs none. The server fills a section that is {} from its fields.
    if isinstance(tree.get("default"), dict) and "properties" in tree:
        if any("default" in each for each in found["properties"].values()):
            found["default"] = {}
    elif tree.get("default") not in (None, [], {}):
        found["default"] = tree["default"]
    return found
