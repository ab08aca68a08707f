"""Loads trained policies from files and runs, and computes their actions."""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from actorq.arithmetic import arithmetic
from actorq.arithmetic.sessions import Session, open_session, signature_of_session
from actorq.domain.contract import check_written
from actorq.domain.leaves import MASK, OBSERVATIONS
from actorq.domain.limits import LARGEST_NUMBER, within_numbers
from actorq.domain.policy import FALLBACK
from actorq.domain.signature import Role, Signature
from actorq.domain.spaces import ArraySpec, EnvironmentSpec, best_choices
from actorq.errors import InvalidInputError, UserError
from actorq.inference.memory import PolicyMemory
from actorq.inference.runpolicies import RunPolicies
from actorq.rundirectory import RunDirectory
from actorq.weightencoding import weight_encoding_of, with_weight_encoding

# Version of the format of an exported policy's description file.
DESCRIPTION_FORMAT = 1

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedPolicy:
    """A trained policy that acts without exploration. Thread-safe without memory.

    A policy with memory keeps a state for each row of its observations. Its calls are the steps of episodes, in their
    order. Call `reset` where an episode begins. Load the policy again for other episodes at the same time.

    environment: the specs of observations and actions. version, scheme: version and scheme of the policy in its run.
    """

    environment: EnvironmentSpec
    version: int
    scheme: str
    _session: Session = field(repr=False)
    _signature: Signature = field(repr=False)
    _memory: PolicyMemory | None = field(default=None, repr=False, compare=False)

    @property
    def has_memory(self) -> bool:
        """Whether an action depends on the observations before."""
        return self._memory is not None

    def reset(self, rows: NDArray[np.bool_] | Sequence[int] | int | None = None) -> None:
        """Begin an episode: forget the observations before. Does nothing without memory.

        rows: of a batch, the rows whose episodes begin: indexes, or a mask bool[B]. By default all rows; the next call
            may then have another number of rows.

        Raises InvalidInputError for rows that the last call did not have.
        """
        if self._memory is not None:
            self._memory.reset(rows)

    def predict(self, observation: ArrayLike | Mapping[str, ArrayLike]) -> Any:
        """The action for one observation, or the actions for a batch of observations.

        observation: [*observation] or [B, *observation], unscaled: the model normalizes it. With frame stacking,
            [K, *frame] or [B, K, *frame], the oldest frame first. Float types are cast.

                For observations of several arrays: a dict with each leaf of `environment.leaves` by name, and the mask
                as "mask", in the same forms. The only leaf needs no dict.

        Returns int64 or int64[B] for discrete actions, and float32[*action] or float32[B, *action] for continuous ones.
        Several discrete parts give int64[parts] or int64[B, parts]; with additional continuous components, float32.
        With memory, all calls after `reset` must have the same number of rows.
        In scheme int8 the rows of a batch share activation ranges, so an action depends slightly on the other rows.

        Raises InvalidInputError for another shape, a type that cannot be cast safely, and NaN or a number beyond 10^9.
        In int8, one such row would change the actions of the others.
        """
        spec = self.environment.policy_observations
        if spec.leaves:
            return self._predict_leaves(spec, observation)
        given = _array("observation", observation)
        single = given.shape == spec.shape
        if not single and (given.shape[1:] != spec.shape or not len(given)):
            raise InvalidInputError(
                f"observation: expected shape {_shape(*spec.shape)} or {_shape('B', *spec.shape)}, got "
                f"{_shape(*given.shape)}"
            )
        if not np.can_cast(given.dtype, spec.dtype, "same_kind"):
            raise InvalidInputError(f"observation: expected {spec.dtype}, got {given.dtype}")
        rows = given[None] if single else given
        if given.dtype.kind == "f" and not (good := within_numbers(rows).reshape(len(rows), -1).all(axis=1)).all():
            raise InvalidInputError(
                f"observation: expected numbers from {-LARGEST_NUMBER:g} to {LARGEST_NUMBER:g}, got NaN or a number "
                f"beyond in row {int(np.argmin(good))}; leave this row out"
            )
        actions = self._actions({OBSERVATIONS: rows.astype(spec.dtype, order="C")})
        return actions[0] if single else actions

    def _predict_leaves(self, spec: ArraySpec, observation: Any) -> Any:
        names = {
            (MASK if leaf.kind == "mask" else leaf.name): (name, each)
            for leaf, (name, each) in zip(spec.leaves, spec.inputs.items(), strict=True)
        }
        if len(names) == 1 and not isinstance(observation, Mapping):
            observation = dict.fromkeys(names, observation)
        if not isinstance(observation, Mapping) or observation.keys() != names.keys():
            got = sorted(map(str, observation)) if isinstance(observation, Mapping) else type(observation).__name__
            raise InvalidInputError(f"observation: expected a dict with {', '.join(names)}, got {got}")
        arrays, single = {}, False
        for key, (name, each) in names.items():
            given = _array(f"observation: {key}", observation[key])
            single = given.shape == each.shape
            rows = given[None] if single else given
            if rows.shape[1:] != each.shape or not len(rows) or not np.can_cast(rows.dtype, each.dtype, "same_kind"):
                raise InvalidInputError(
                    f"observation: {key}: expected {each.dtype}{_shape(*each.shape)} or {_shape('B', *each.shape)}, "
                    f"got {given.dtype}{_shape(*given.shape)}"
                )
            if rows.dtype.kind == "f" and not within_numbers(rows).all():
                raise InvalidInputError(f"observation: {key}: NaN, or a number beyond {LARGEST_NUMBER:g}")
            arrays[name] = rows.astype(each.dtype, order="C")
        if len({len(rows) for rows in arrays.values()}) > 1:
            raise InvalidInputError(f"observation: expected as many rows of each of {', '.join(names)}")
        actions = self._actions(arrays)
        return actions[0] if single else actions

    def _actions(self, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """The actions for rows of each input by name."""
        spec, first = self.environment, next(iter(arrays.values()))
        # Without noise, a policy returns its most likely action.
        own = {Role.NOISE: np.zeros((len(first), spec.components), np.float32)}
        memory, mixed = self._memory, spec.sizes and spec.components
        names = [self._signature.acting.name, *([self._signature.output(Role.ACTIONS)] if mixed else [])]
        if memory is not None:
            own[Role.STATE] = memory.before(len(first))
            names.append(self._signature.next_state)
        # A single input may have any name.
        feeds = {
            port.name: own[port.role] if port.role in own else arrays.get(port.name, first)
            for port in self._signature.inputs
        }
        outputs, *others = self._session.run(names, feeds)
        if memory is not None:
            memory.after(others.pop())
        if not spec.sizes:
            return np.asarray(outputs.reshape(-1, *spec.actions.shape))
        best = best_choices(outputs, spec.sizes)
        return np.concatenate((best, *others), 1, dtype=np.float32) if mixed else best.reshape(-1, *spec.actions.shape)


def _shape(*sizes: int | str) -> str:
    return f"[{', '.join(map(str, sizes))}]"


def _array(name: str, given: Any) -> NDArray[Any]:
    """The values as an array. Raises InvalidInputError if they form no array of numbers."""
    try:
        array = np.asarray(given)
    except ValueError:
        raise InvalidInputError(f"{name}: expected an array, got rows of different lengths") from None
    if array.dtype == object:
        raise InvalidInputError(f"{name}: expected an array of numbers, got {type(given).__name__}")
    return array


def load_policy(path: str | Path, version: int | str = "", scheme: str = "") -> LoadedPolicy:
    """Load a trained policy to compute its actions.

    path: an ONNX file written by `actorq export`, with its .json file in the same folder; or the directory of a run,
        which may still be running.
    version: for a run: "best", "newest" or a number. By default the version with the best evaluation, or the newest
        if no version has an evaluation.
    scheme: for a run: by default the scheme of its actors. The run's folder must have the policy in this scheme.

    The function needs ONNX Runtime and numpy (`pip install 'actorq[actor]'`), and no environment. Raises UserError for
    a missing file or version, and for a damaged file.

    If the processor computes the file's weight encoding wrongly, the policy is converted to an exact encoding. A
    warning then names the export command for other programs.
    """
    try:
        return _load(Path(path), str(version), scheme)
    except ImportError:
        raise UserError("a policy needs ONNX Runtime: pip install 'actorq[actor]'") from None


def description_file(model: Path) -> Path:
    """The description file in the same folder as an exported model."""
    return model.with_suffix(".json")


def _load(path: Path, version: str, scheme: str) -> LoadedPolicy:
    if path.is_dir():
        policies = RunPolicies(RunDirectory(path))
        found = policies.find(version)
        stored = policies.stored(found, scheme or policies.scheme_of(found), arithmetic().weight_encoding)
        return _loaded(path, stored.model, policies.run.read_environment(), found.version, stored.descriptor.scheme)
    if version or scheme:
        raise UserError(f"{path}: a file has one version and scheme; give the folder of a run to choose another")
    model, description = read_exported(path)
    spec = EnvironmentSpec.from_json(description["environment"])
    return _loaded(path, model, spec, description["version"], description["scheme"])


def read_exported(path: Path) -> tuple[bytes, dict[str, Any]]:
    """An exported model, with int8 weights for this processor, and its checked description. Raises UserError."""
    if path.is_file() and not description_file(path).exists():
        raise UserError(
            f"{path}: expected its description {description_file(path).name} beside it; actorq export writes both. A "
            "file of actorq quantize has none: run it with ONNX Runtime"
        )
    try:
        model, description = path.read_bytes(), json.loads(description_file(path).read_text(encoding="utf-8"))
        if (written := description["format"]) != DESCRIPTION_FORMAT:
            raise UserError(f"{path}: expected a description in format {DESCRIPTION_FORMAT}, got {written}")
        check_written(str(path), description.get("contract", 1))
        if hashlib.sha256(model).hexdigest() != description["sha256"]:
            raise UserError(f"{path}: the file is not the one that {description_file(path)} describes; export it again")
        for name, kind in (("environment", dict), ("version", int), ("scheme", str)):
            if not isinstance(description[name], kind):
                raise TypeError(f"{name} is {description[name]!r}")
        EnvironmentSpec.from_json(description["environment"])
        return _exact(path, model), description
    except OSError as error:
        raise UserError(
            f"{error.filename}: cannot be read ({error.strerror}); actorq export writes a policy and its description"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{description_file(path)}: expected a file that actorq export wrote, but {error!r}") from None


def _exact(path: Path, model: bytes) -> bytes:
    """The model with int8 weights in an encoding that this processor computes exactly."""
    written, here = weight_encoding_of(model), arithmetic().weight_encodings
    if written is None or not here or written in here:
        return model
    _log.warning(
        "%s: this processor does not compute %s weights exactly, so they were converted to %s here; for other "
        "programs, export the policy with --weight-encoding %s",
        path,
        written,
        here[0],
        here[0],
    )
    return with_weight_encoding(model, here[0])


def _loaded(path: Path, model: bytes, spec: EnvironmentSpec, version: int, scheme: str) -> LoadedPolicy:
    if scheme in arithmetic().inexact_schemes:
        _log.warning("%s: this processor computes %s wrongly; export the policy in %s", path, scheme, FALLBACK)
    try:
        session = open_session(model)
        signature = signature_of_session(session)
        return LoadedPolicy(spec.for_policy, version, scheme, session, signature, _memory_of(session, signature))
    except ImportError:
        raise
    except InvalidInputError as error:
        raise UserError(f"{path}: {error}") from None
    except Exception as error:  # ONNX Runtime's exceptions share no base class.
        raise UserError(f"{path}: ONNX Runtime cannot load the model ({' '.join(str(error).split())[:300]})") from None


def _memory_of(session: Session, signature: Signature) -> PolicyMemory | None:
    """A memory of zeros for a policy with a state; None for others."""
    name = signature.state
    if name is None:
        return None
    shape = next(each.shape for each in session.get_inputs() if each.name == name)
    if len(shape) != 2 or not isinstance(shape[1], int):
        raise InvalidInputError(f"expected a state of a fixed size for each row, got {name} of shape {shape}")
    return PolicyMemory(shape[1])
