"""The reference of all settings, from their declarations."""

import inspect
from collections.abc import Iterator
from importlib import import_module
from itertools import groupby
from typing import Annotated, Any

from pydantic import TypeAdapter

from actorq.config.presets import descriptions
from actorq.config.run_config import RunConfig
from actorq.config.settings import Leaf, Settings, leaves
from actorq.process import ProcessSettings
from sitegen.markdown import names, table

# Modules in which commands and services declare their own settings.
_OF_PROCESSES = {
    "actorq train": "actorq_apps.cli.train",
    "actorq evaluate": "actorq_apps.cli.evaluate",
    "actorq status": "actorq_apps.cli.status",
    "actorq reset-environment": "actorq_apps.cli.reset_environment",
    "actorq certificates": "actorq_apps.cli.certificates",
    "actorq learner": "learner_service.process",
    "actorq quantizer": "quantizer_service.process",
    "actorq actor": "actor_service.process",
    "actorq serve": "actor_service.external.serve",
    "actorq meter": "actorq_apps.meter.__main__",
}
_BOUNDS = {
    "exclusiveMinimum": "above {}",
    "minimum": "at least {}",
    "exclusiveMaximum": "below {}",
    "maximum": "at most {}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
}


def run_settings() -> str:
    """A section for each group of the run's settings."""
    return "\n\n".join(_sections(RunConfig, "The run"))


def process_settings() -> str:
    """A section for the settings of all services, then one for each service and command."""
    parts = list(_sections(ProcessSettings, "Every service"))
    for program, module in _OF_PROCESSES.items():
        for model in _declared_in(module):
            parts += _sections(model, f"`{program}`")
    return "\n\n".join(parts)


def all_leaves() -> list[Leaf]:
    """All settings: of a run, of every service, and of each service and command. For each key only the first."""
    models: list[type[Settings]] = [
        RunConfig,
        ProcessSettings,
        *(model for module in _OF_PROCESSES.values() for model in _declared_in(module)),
    ]
    found: dict[tuple[str, ...], Leaf] = {}
    for model in models:
        for leaf in leaves(model):
            found.setdefault(leaf.path, leaf)
    return list(found.values())


def presets() -> str:
    """The settings that each preset changes."""
    rows = ((name, text if text.startswith("none") else names(text.split(", "))) for name, text in descriptions())
    return table(("preset", "settings"), rows)


def _declared_in(module: str) -> list[type[Settings]]:
    members = inspect.getmembers(import_module(module), inspect.isclass)
    return [found for _, found in members if issubclass(found, Settings) and found.__module__ == module]


def _sections(model: type[Settings], title: str) -> Iterator[str]:
    """Heading, description and table of each section of a tree; `title` is the heading of settings in no section."""

    def section_of(leaf: Leaf) -> tuple[str, ...]:
        return leaf.path[:-1]

    for section, members in groupby(sorted(leaves(model), key=section_of), key=section_of):
        described: Any = model
        for name in section:
            described = described.model_fields[name].annotation
        rows = [(_names(leaf), *_type(leaf), _default(leaf), leaf.field.description) for leaf in members]
        heading = f"### `{'.'.join(section)}`" if section else f"### {title}"
        head = ("setting", "type", "bounds", "default", "meaning")
        yield f"{heading}\n\n{inspect.getdoc(described)}\n\n{table(head, rows)}"


def _names(leaf: Leaf) -> str:
    """YAML key, flag and environment variable."""
    key = ".".join(leaf.path)
    return f'<span id="{key}">`{key}`</span><br>`{leaf.flag}`<br>`{leaf.variable}`'


def _default(leaf: Leaf) -> str:
    """Required, or the default as code."""
    if leaf.field.is_required():
        return "required"
    text = leaf.default
    return text if text == "empty" or " " in text else f"`{text}`"


def _type(leaf: Leaf) -> tuple[str, str]:
    """Type and bounds."""
    annotated: Any = Annotated[leaf.field.annotation, leaf.field]
    schema = TypeAdapter(annotated).json_schema()
    variants = schema.pop("anyOf", [{}])
    merged = {**schema, **variants[0]}
    optional = any(variant.get("type") == "null" for variant in variants)
    if "enum" in merged:
        kind, bounds = names(merged["enum"]), []
    else:
        kind = "path" if merged.get("format") == "path" else merged.get("type", "text")
        kind = {"string": "text", "object": "mapping", "array": "list"}.get(kind, kind)
        bounds = [text.format(f"{merged[key]:,}") for key, text in _BOUNDS.items() if key in merged]
    return kind + (", or `none`" if optional else ""), ", ".join(bounds)
