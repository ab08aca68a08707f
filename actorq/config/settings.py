"""Settings of any typed tree, from a YAML file, environment variables and flags, in rising order of precedence.

The setting `replay.min_size` is `replay: {min_size: ...}` in YAML, ACTORQ_REPLAY__MIN_SIZE in the environment and
`--replay.min-size` as a flag.
"""

import argparse
import json
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from actorq import ENVIRONMENT_PREFIX
from actorq.config.messages.expected import SECTION, expected_at
from actorq.config.messages.suggestions import suggestion
from actorq.config.parser import OneLineParser, entries_name
from actorq.errors import UserError
from actorq.text import one_line

S = TypeVar("S", bound="Settings")

# Limit on the values of a YAML text with its aliases expanded. A few lines of aliases can expand to billions.
_MOST_VALUES = 100_000

# Length of a wrong value in an error, in bytes.
_MOST_SHOWN = 120

# Kubernetes sets such variables in every container, for each service of the namespace ("service links"). The service
# actorq-learner gives ACTORQ_LEARNER_SERVICE_HOST, ACTORQ_LEARNER_PORT_50051_TCP_ADDR and the like.
_SERVICE_LINK = re.compile(
    r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$", re.ASCII
)
# The beginning of an assignment in NAME=VALUE,NAME=VALUE.
_ASSIGNMENT = re.compile(r"(^|,)\s*(\w+)\s*=")


class Settings(BaseModel):
    """Base of all settings: frozen, with finite numbers, without undeclared settings.

    short: the setting that the section's own name sets, such as `--memory gru` for `--memory.kind gru`; empty for none.
    """

    short: ClassVar[str] = ""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class DefaultText:
    """Annotation of a field: text for the help in place of a default that is computed later."""

    text: str


# Annotation of a field: `--help` shows the setting. Without it, only `--help-all` does.
ESSENTIAL = "essential"


@dataclass(frozen=True)
class Leaf:
    """One setting: its path in the tree, its declaration, and the section that declares it."""

    path: tuple[str, ...]
    field: FieldInfo
    section: type[Settings]

    @property
    def flag(self) -> str:
        """The setting's flag."""
        return "--" + ".".join(self.path).replace("_", "-")

    @property
    def flags(self) -> tuple[str, ...]:
        """The setting's flag, and the flag of its section if the section is short for this setting."""
        section = "--" + ".".join(self.path[:-1]).replace("_", "-")
        return (self.flag, *([section] if self.section.short == self.path[-1] else []))

    @property
    def has_entries(self) -> bool:
        """Whether it is a mapping of names to lists. Each entry then has a flag of its own: `FLAG.NAME VALUE,VALUE`."""
        inner = typing.get_args(self.field.annotation)[1:]
        is_mapping = typing.get_origin(self.field.annotation) is dict
        return is_mapping and typing.get_origin(plain_type(inner[0])) is tuple

    @property
    def variable(self) -> str:
        """The setting's environment variable."""
        return ENVIRONMENT_PREFIX + "__".join(self.path).upper()

    @property
    def help(self) -> str:
        """The description and default on one line."""
        return self.help_with(self.default)

    def help_with(self, default: str) -> str:
        """The description and this default on one line."""
        suffix = "" if self.field.is_required() else f" (default: {default})"
        return f"{self.field.description}{suffix}".replace("%", "%%")

    @property
    def in_words(self) -> str:
        """The text for a default that is computed later; empty for other defaults."""
        return next((extra.text for extra in self.field.metadata if isinstance(extra, DefaultText)), "")

    @property
    def default(self) -> str:
        """The default as a flag's text, or in words if it is computed later."""
        return self.in_words or default_text(self.field.get_default(call_default_factory=True))


def default_text(value: object) -> str:
    """A default as a flag's text, or "empty"."""
    return "empty" if value in ("", (), {}) else value_text(value)


def value_text(value: object) -> str:
    """A setting's value as a flag's text."""
    if value is None:
        return "none"
    if isinstance(value, dict) or (isinstance(value, tuple) and (not value or isinstance(value[0], dict))):
        return json.dumps(value, sort_keys=True, default=str)
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def flag_text(name: str, value: object) -> str:
    """A setting with this value as a flag of a command."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag} {value_text(tuple(value) if isinstance(value, list) else value)}"


def leaves(model: type[Settings], path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """All settings of a tree, in the order of declaration."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            yield from leaves(field.annotation, (*path, name))
        else:
            yield Leaf((*path, name), field, model)


def add_flags(parser: OneLineParser, model: type[Settings], title: str = "run") -> dict[argparse.Action, Leaf]:
    """Declare a flag for each setting, grouped by section. Unset flags are absent from the parsed namespace.

    title: title of the group of settings without a section. If any setting is ESSENTIAL, the short help shows only the
    essential settings and the names of the sections. Returns the setting of each flag.
    """
    has_essential = any(ESSENTIAL in leaf.field.metadata for leaf in leaves(model))
    groups: dict[tuple[str, ...], Any] = {}
    flags: dict[argparse.Action, Leaf] = {}
    for leaf in leaves(model):
        section = leaf.path[:-1]
        if section not in groups:
            name = ".".join(section) if section else title
            groups[section] = parser.section(name, " ".join((leaf.section.__doc__ or "").split()))
        kind = plain_type(leaf.field.annotation)
        options: dict[str, Any] = {"dest": ".".join(leaf.path), "default": argparse.SUPPRESS, "help": leaf.help}
        if kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif typing.get_origin(kind) is typing.Literal:
            options["metavar"] = "{" + ",".join(map(str, typing.get_args(kind))) + "}"
        else:
            metavars = {int: "N", float: "X", Path: "PATH", str: "VALUE", dict: "NAME=VALUE,..", tuple: "VALUE,.."}
            numbers = plain_type(next(iter(typing.get_args(kind)), None)) is int
            options["metavar"] = "N,N,.." if numbers else metavars[typing.get_origin(kind) or kind]
        action = groups[section].add_argument(*leaf.flags, **options)
        if leaf.has_entries:
            parser.accept_entries(leaf.flag, options["dest"])
        flags[action] = leaf
        if has_essential and ESSENTIAL not in leaf.field.metadata:
            parser.only_in_full_help(action, ".".join(section).replace("_", "-"))
    return flags


def from_flags(model: type[Settings], namespace: argparse.Namespace) -> dict[str, Any]:
    """The settings of `model` given as flags, as a nested dict."""
    tree: dict[str, Any] = {}
    for leaf in leaves(model):
        dest = ".".join(leaf.path)
        if hasattr(namespace, dest):
            _put(tree, leaf.path, _text_to_value(leaf, getattr(namespace, dest)))
        for name, text in getattr(namespace, entries_name(dest), {}).items():
            _put(tree, (*leaf.path, name), text)
    return tree


def from_environment(model: type[Settings], environment: Mapping[str, str]) -> dict[str, Any]:
    """The settings of `model` in environment variables, as a nested dict."""
    tree: dict[str, Any] = {}
    for leaf in leaves(model):
        if leaf.variable in environment:
            _put(tree, leaf.path, _text_to_value(leaf, environment[leaf.variable]))
    return tree


def check_environment(
    models: Sequence[type[Settings]], environment: Mapping[str, str], elsewhere: Sequence[str] = ()
) -> None:
    """Raise UserError for a variable with this project's prefix that no model and no other program declares."""
    known = {leaf.variable for model in models for leaf in leaves(model)}
    known |= {ENVIRONMENT_PREFIX + name.upper() for name in elsewhere}
    for name in environment:
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known and not _SERVICE_LINK.search(name):
            raise UserError(f"environment variable {name} is no setting{suggestion(name, known)}")


def from_yaml(text: str) -> Any:
    """The value of a YAML text. Raises ValueError with the reason on one line."""
    return _loaded(lambda stream: yaml.load(stream, _Loader), text)


def documents_from_yaml(text: str) -> list[Any]:
    """The values of a YAML stream. Raises ValueError with the reason on one line."""
    return list(_loaded(lambda stream: list(yaml.load_all(stream, _Loader)), text))


class _Loader(yaml.SafeLoader):
    """Refuses a name that occurs twice in a section. YAML would silently lose one of the two values."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names: set[Any] = set()
        for key, _ in node.value:
            # Merged sections may repeat names. Their values have lower priority.
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                name = self.construct_object(key)
                if name in names:
                    line = key.start_mark.line + 1
                    raise yaml.YAMLError(f"line {line}: {name!r} is there twice in one section: remove one of them")
                names.add(name)
        return super().construct_mapping(node, deep)


def _count(tree: Any, around: frozenset[int], counts: dict[int, int]) -> int:
    """The number of values in a tree with aliases expanded. Raises ValueError for too many values, or for a cycle."""
    if not isinstance(tree, dict | list):
        return 1
    if id(tree) in around:
        raise ValueError("an alias refers to a section or list that contains it")
    if id(tree) not in counts:
        inner = tree.values() if isinstance(tree, dict) else tree
        counts[id(tree)] = 1 + sum(_count(each, around | {id(tree)}, counts) for each in inner)
    if counts[id(tree)] > _MOST_VALUES:
        raise ValueError(f"it expands to more than {_MOST_VALUES:,} values")
    return counts[id(tree)]


def _loaded(load: Callable[[str], Any], text: str) -> Any:
    try:
        found = load(text)
        _count(found, frozenset(), {})
        return found
    except RecursionError:
        raise ValueError("its sections or lists are nested too deeply") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:
        # PyYAML raises the other errors for values that do not fit their tags, such as a date with a thirteenth month.
        raise ValueError(" ".join(str(error).split())) from None


def from_file(path: Path, flag: str = "--config: ") -> dict[str, Any]:
    """A YAML file's settings as a nested dict. Raises UserError, which begins with the flag that names the file."""
    try:
        tree = from_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{flag}cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{flag}{path} is not YAML: {error}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise UserError(f"{flag}{path} must hold settings as 'name: value', got {type(tree).__name__}")
    return tree


def share(
    tree: Any, name: str, models: Sequence[type[Settings]], elsewhere: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Split a file's section `name` among the models that declare its settings. Raises UserError if it is no section.

    The first model gets undeclared settings and refuses them. Settings of other programs (`elsewhere`) are dropped.
    """
    if not isinstance(tree, dict):
        raise UserError(f"setting '{name}': expected a section of settings, got {_shown(tree)}")
    declared = {field for model in models for field in model.model_fields} | set(elsewhere)
    return [
        {key: value for key, value in tree.items() if key in model.model_fields or (not index and key not in declared)}
        for index, model in enumerate(models)
    ]


def build(model: type[S], *trees: dict[str, Any], section: str = "") -> S:
    """Validate the merged trees; later trees override earlier ones. Raises UserError with the first fault on one line.

    section: the section of the run's settings that errors name.
    """
    try:
        return model.model_validate(merged(*(in_full(model, tree) for tree in trees)))
    except ValidationError as error:
        raise UserError(_explain(model, error, section)) from None


def in_full(model: type[Settings], tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with each text in place of a section as the section's `short` setting: `memory: gru`."""

    def full(name: str, value: Any) -> Any:
        section: Any = model.model_fields[name].annotation if name in model.model_fields else None
        is_section = isinstance(section, type) and issubclass(section, Settings)
        return {section.short: value} if isinstance(value, str) and is_section and section.short else value

    return {name: full(name, value) for name, value in tree.items()}


def to_yaml(settings: Settings) -> str:
    """The whole tree as YAML, in the order of declaration."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False)


def plain_type(annotation: Any) -> Any:
    """The type of a setting, without None and without bounds."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return plain_type(next(kind for kind in typing.get_args(annotation) if kind is not type(None)))
    if typing.get_origin(annotation) is typing.Annotated:
        return typing.get_args(annotation)[0]
    return annotation


def _text_to_value(leaf: Leaf, value: Any) -> Any:
    if isinstance(value, str) and typing.get_origin(leaf.field.annotation) is tuple:
        if value.lstrip().startswith("["):
            try:
                return from_yaml(value)
            except ValueError:
                expected = "VALUE,VALUE or a list in YAML or JSON"
                raise UserError(f"setting '{'.'.join(leaf.path)}': expected {expected}, got {value!r}") from None
        return [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, str) and typing.get_origin(leaf.field.annotation) is dict:
        return _text_to_mapping(leaf, value)
    if isinstance(value, str) and value.lower() == "none" and type(None) in typing.get_args(leaf.field.annotation):
        return None
    return value


def _text_to_mapping(leaf: Leaf, text: str) -> dict[str, Any]:
    """Parse NAME=VALUE,NAME=VALUE with YAML values, or a YAML or JSON mapping in braces."""
    is_mapping = text.lstrip().startswith("{")
    try:
        mapping = from_yaml(text if is_mapping else "{" + _ASSIGNMENT.sub(r"\1\2: ", text) + "}")
    except ValueError:
        mapping = None
    # In YAML, a name without a value is a setting without a value.
    if not isinstance(mapping, dict) or not (is_mapping or _ASSIGNMENT.match(text)):
        expected = "NAME=VALUE,NAME=VALUE (a list is [VALUE,VALUE]) or a mapping in YAML or JSON"
        raise UserError(f"setting '{'.'.join(leaf.path)}': expected {expected}, got {text!r}")
    return mapping


def _put(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def flat(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """All settings of a tree as dotted names and values."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def has(tree: object, path: Sequence[str]) -> bool:
    """Whether a tree has a setting or a section."""
    return not path or (isinstance(tree, Mapping) and path[0] in tree and has(tree[path[0]], path[1:]))


def merged(*trees: Mapping[str, Any]) -> dict[str, Any]:
    """The merged trees; later trees override earlier ones. The result shares no section with them."""
    result: dict[str, Any] = {}
    for tree in trees:
        for name, value in tree.items():
            below = result.get(name)
            result[name] = merged(below if isinstance(below, dict) else {}, value) if isinstance(value, dict) else value
    return result


def _explain(model: type[Settings], error: ValidationError, section: str) -> str:
    fault = error.errors()[0]
    above = (section,) if section else ()
    name, expected = expected_at(model, fault["loc"])
    path = ".".join((*above, *((name,) if name else ())))
    if fault["type"] == "extra_forbidden":
        known = {".".join((*above, *leaf.path)) for leaf in leaves(model)}
        return f"unknown setting '{path}'{suggestion(path, known)}"
    more = error.error_count() - 1
    others = f" (and {more} more {'fault' if more == 1 else 'faults'})" if more else ""
    of_validator = fault["type"] == "value_error"
    # pydantic's texts describe Python's types. A validator of this project describes its setting.
    message = str(fault["ctx"]["error"]) if of_validator else f"expected {expected}"
    if fault["type"] == "finite_number":
        message = message.replace("a number", "a finite number", 1)
    if of_validator and expected == SECTION:
        # A rule about several settings of a section: its text names them with their values.
        return f"{message}{others}"
    if fault["type"] == "missing":
        return f"setting '{path}' is missing: {message}{others}"
    return f"setting '{path}': {message}, got {_shown(fault['input'])}{others}"


def _shown(value: object) -> str:
    shown = repr(value) if isinstance(value, str | int | float | list | None) else f"a {type(value).__name__}"
    return one_line(shown, _MOST_SHOWN)
