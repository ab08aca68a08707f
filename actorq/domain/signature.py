"""The roles of a policy graph's inputs and outputs. All services find inputs and outputs by role.

The learner sends the signature with the graph. An emitted model has it in its metadata. Stores, exports, relays and
actors therefore need no further message. `signature_of` infers roles for a model without them, such as a library's.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from actorq.domain.limits import (
    MAX_AGENTS,
    MAX_INPUTS,
    MAX_MAGNITUDE,
    MAX_OUTPUT_COMPONENTS,
    MAX_OUTPUTS,
    MAX_PARTS,
    MAX_TEXT_BYTES,
)
from actorq.errors import InvalidInputError

METADATA = "signature"
"""Key of a signature in a model's metadata."""


class Role(StrEnum):
    """The role of an input or output, [B, ...] each. Every role but OBSERVATION and OTHER occurs at most once."""

    OBSERVATION = "observation"
    """An observation, or one of its arrays."""
    MASK = "mask"
    """The allowed choices."""
    NOISE = "noise"
    """Standard normal numbers float32[B, components] that a policy turns into exploration; zeros for greedy actions."""
    STATE = "state"
    """The state of a recurrent policy, float32[B, S]: the input before a step and the output after it."""

    VALUES = "q_values"
    """A value for each choice of each discrete part, float32[B, choices]; the largest wins. Or the choices themselves
    as whole numbers."""
    LOGITS = "logits"
    """Logarithms of unscaled probabilities of the choices of each discrete part, float32[B, choices]."""
    ACTIONS = "actions"
    """Continuous actions float32[B, *action]: with noise, or the most likely actions."""
    GREEDY_ACTIONS = "greedy_actions"
    """Continuous actions without the noise."""
    MEAN = "mean"
    """Mean of a Gaussian float32[B, components], in units of half the range around its middle."""
    LOG_STD = "log_std"
    """Logarithm of its standard deviation float32[B, components], in the same units."""
    OTHER = "other"
    """An output without one of these roles, such as a value estimate. Samplers of packages find it by its name."""


_DISCRETE = (Role.VALUES, Role.LOGITS)
_INPUTS = (Role.OBSERVATION, Role.MASK, Role.NOISE, Role.STATE)
_REPEATED = (Role.OBSERVATION, Role.OTHER)
NEXT_STATE = "next_state"
"""Name of the output with the state after a step. The input before the step is named "state"."""


@dataclass(frozen=True)
class Port:
    """An input or output of a policy graph.

    sizes: of values and logits, the number of choices of each discrete part, in the order of the output; empty if not
        known.
    spans: of actions, highest minus lowest action of each component; empty if not known.
    """

    name: str
    role: Role
    sizes: tuple[int, ...] = ()
    spans: tuple[float, ...] = ()


@dataclass(frozen=True)
class RowGroup:
    """Rows with a policy of their own within the graph: those with 1 at a component of an input.

    component: index in one row of the input, in C order. The component is 0 in all other rows.
    """

    name: str
    input: str
    component: int


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of a policy graph, each batch first, in the graph's order. The first output is the action.

    groups: the groups of rows with a policy of their own; empty if all rows have the same policy.

    Raises InvalidInputError for a role in the wrong place or twice, a state that is only an input or only an output,
    and numbers out of range.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    groups: tuple[RowGroup, ...] = ()

    def __post_init__(self) -> None:
        for what, ports, most in (("inputs", self.inputs, MAX_INPUTS), ("outputs", self.outputs, MAX_OUTPUTS)):
            if not 1 <= len(ports) <= most:
                raise InvalidInputError(f"signature: expected 1 to {most} {what}, got {len(ports)}")
            roles = [port.role for port in ports if port.role not in _REPEATED]
            if len(set(roles)) < len(roles):
                raise InvalidInputError(f"signature: expected each role once among the {what}, got {', '.join(roles)}")
            for port in ports:
                if (port.role in _INPUTS) != (what == "inputs") and port.role is not Role.STATE:
                    raise InvalidInputError(f"signature: {port.name}: {port.role} is no role of {what}")
                sizes, spans = port.sizes, port.spans
                if len(sizes) > MAX_PARTS or sum(sizes) > MAX_OUTPUT_COMPONENTS or min(sizes, default=1) < 1:
                    raise InvalidInputError(f"signature: {port.name}: sizes out of range, got {list(sizes[:8])}")
                if len(spans) > MAX_OUTPUT_COMPONENTS or not all(0 < span <= MAX_MAGNITUDE for span in spans):
                    raise InvalidInputError(
                        f"signature: {port.name}: spans must be above 0 and at most {MAX_MAGNITUDE}, got "
                        f"{list(spans[:8])}"
                    )

        if (self.state is None) != (self.next_state is None):
            raise InvalidInputError("signature: expected a state as an input and as an output, or as neither")
        names = [group.name for group in self.groups]
        inputs = {port.name for port in self.inputs if port.role is Role.OBSERVATION}
        if len(names) > MAX_AGENTS or len({*names}) < len(names) or not {each.input for each in self.groups} <= inputs:
            raise InvalidInputError("signature: expected groups with different names and bits in an observation")

    @property
    def state(self) -> str | None:
        """The name of the input with the state before a step; None without memory."""
        return next((port.name for port in self.inputs if port.role is Role.STATE), None)

    @property
    def next_state(self) -> str | None:
        """The name of the output with the state after a step; None without memory."""
        return self.output(Role.STATE)

    @property
    def acting(self) -> Port:
        """The output that chooses the action."""
        return self.outputs[0]

    @property
    def is_discrete(self) -> bool:
        """Whether the acting output has values or logits of choices."""
        return self.acting.role in _DISCRETE

    def output(self, what: str) -> str | None:
        """The name of the first output with this role, or of the OTHER output with this name; None if there is none."""
        others = (port.name for port in self.outputs if port.role is Role.OTHER and port.name == what)
        return next((port.name for port in self.outputs if port.role == what), next(others, None))

    def to_text(self) -> str:
        """The signature as JSON, for a model's metadata."""
        tree: dict[str, Any] = {
            what: [[port.name, port.role, port.sizes, port.spans] for port in ports]
            for what, ports in (("inputs", self.inputs), ("outputs", self.outputs))
        }
        if self.groups:
            # Earlier versions do not know this value.
            tree["groups"] = [[each.name, each.input, each.component] for each in self.groups]
        return json.dumps(tree, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> "Signature":
        """Parse the text that `to_text` wrote. Raises InvalidInputError for any other text."""
        try:
            tree = json.loads(text)
            inputs, outputs = (tuple(map(_port, tree[what])) for what in ("inputs", "outputs"))
            return cls(inputs, outputs, tuple(_group(*each) for each in tree.get("groups", ())))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise InvalidInputError(f"signature: expected inputs and outputs with roles, got {error!r:.200}") from None


def _port(values: Any) -> Port:
    name, role, sizes, spans = values
    if not isinstance(name, str) or len(name) > MAX_TEXT_BYTES or not all(type(size) is int for size in sizes):
        raise ValueError("a name that is no text, or sizes that are no whole numbers")
    return Port(name, Role(role), tuple(sizes), tuple(map(float, spans)))


def _group(name: Any, read: Any, component: Any) -> RowGroup:
    texts = all(isinstance(each, str) and len(each) <= MAX_TEXT_BYTES for each in (name, read))
    if not texts or type(component) is not int or component < 0:
        raise ValueError("a group without a name, an input and a component")
    return RowGroup(name, read, component)


def signature_of(
    inputs: Iterable[str],
    outputs: Iterable[str],
    discrete: bool | None = None,
    spans: Sequence[float] = (),
    sizes: Sequence[int] = (),
) -> Signature:
    """Infer the signature of a graph from its names: an output's name is its role.

    Other outputs are OTHER. The first output is the action. With several inputs, "noise" is the noise and "mask" is the
    mask. If there are an input "state" and a later output "next_state", they are the state. All other inputs are
    observations.

    discrete: whether the first output has values of choices instead of actions; by default its name decides.
    spans: spans of the actions; see `Port`. sizes: sizes of values and logits.
    """
    names = tuple(inputs)
    first, *others = outputs
    known = {role.value: role for role in Role if role not in _INPUTS}
    if first == Role.LOGITS and not (discrete is False and spans):
        acting = Port(first, Role.LOGITS, tuple(sizes))
    elif discrete or (discrete is None and first == Role.VALUES):
        acting = Port(first, Role.VALUES, tuple(sizes))
    else:
        acting = Port(first, Role.ACTIONS, spans=tuple(spans))
    has_state = len(names) > 1 and Role.STATE in names and NEXT_STATE in others
    if has_state:
        known[NEXT_STATE] = Role.STATE
    further, seen = [], {acting.role}
    for name in others:
        role = known.get(name, Role.OTHER)
        further.append(Port(name, Role.OTHER if role in seen else role))
        seen.add(role)
    special = {Role.MASK.value: Role.MASK, Role.NOISE.value: Role.NOISE} if len(names) > 1 else {}
    if has_state:
        special[Role.STATE.value] = Role.STATE
    ports = tuple(Port(name, special.get(name, Role.OBSERVATION)) for name in names)
    return Signature(ports, (acting, *further))
