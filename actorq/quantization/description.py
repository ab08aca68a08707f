"""Describes an exported policy: the content of its JSON file, which `actorq.load_policy` reads with the ONNX file."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import onnx
from onnx import helper, numpy_helper

from actorq import __version__
from actorq.domain.contract import CONTRACT
from actorq.domain.environments import Group
from actorq.domain.policy import Policy, RetainedPolicy
from actorq.domain.signature import METADATA, Signature
from actorq.domain.spaces import EnvironmentSpec
from actorq.inference import DESCRIPTION_FORMAT
from actorq.quantization.nodes import STANDARD
from actorq.weightencoding import weight_encoding_of


def describe(
    name: str,
    policy: Policy,
    version: RetainedPolicy,
    environment: EnvironmentSpec,
    algorithm: str,
    evaluation: Mapping[str, Any] | None,
    form: str = "onnxruntime",
    weight_encoding: str | None = None,
    group: Group | None = None,
) -> dict[str, Any]:
    """The description as a JSON object.

    name: name of the ONNX file with the model of `policy`. evaluation: the version's newest one in the run's log.
    form: form of the model, as `actorq export` names it. weight_encoding: the actors' encoding, for a model in another
        form. group: the group whose policy it is alone; None for the policy of all agents.
    """
    model, descriptor = policy.model, policy.descriptor
    parsed = onnx.ModelProto.FromString(model)
    spec = environment.for_policy if group is None else environment.for_policy.without_groups
    return {
        "format": DESCRIPTION_FORMAT,
        "contract": CONTRACT,
        "actorq_version": __version__,
        "file": name,
        "sha256": hashlib.sha256(model).hexdigest(),
        "size_bytes": len(model),
        "form": form,
        "opset": next(entry.version for entry in parsed.opset_import if entry.domain in STANDARD),
        "inputs": {value.name: _tensor(value) for value in parsed.graph.input},
        "outputs": {value.name: _tensor(value) for value in parsed.graph.output},
        "memory": _memory(parsed),
        "run_id": descriptor.run_id,
        "algorithm": algorithm,
        "version": version.version,
        "updates": version.learner_step,
        "scheme": descriptor.scheme,
        "effective_scheme": descriptor.effective_scheme,
        # Encoding of int8 products; null without int8 products.
        "weight_encoding": weight_encoding or weight_encoding_of(model),
        "environment": spec.to_json(),
        **({} if group is None else {"group": {"name": group.name, "agents": [*group.agents]}}),
        "normalization": _normalization(parsed.graph),
        # JSON has no infinity. A policy that did not run has infinite errors.
        "fidelity": json.loads(json.dumps(descriptor.fidelity.to_json()), parse_constant=lambda _: None),
        "evaluation": _evaluation(evaluation, version.mean_return),
    }


def _tensor(value: onnx.ValueInfoProto) -> dict[str, Any]:
    tensor = value.type.tensor_type
    return {
        "shape": [dim.dim_value or dim.dim_param for dim in tensor.shape.dim],
        "dtype": helper.tensor_dtype_to_np_dtype(tensor.elem_type).name,
    }


def _memory(model: onnx.ModelProto) -> dict[str, Any] | None:
    """Input and output with the state, and its size. A state begins with zeros. None for a policy without memory."""
    text = next((entry.value for entry in model.metadata_props if entry.key == METADATA), None)
    signature = None if text is None else Signature.from_text(text)
    if signature is None or signature.state is None:
        return None
    state = next(value for value in model.graph.input if value.name == signature.state)
    return {"state": state.name, "next_state": signature.next_state, "size": _tensor(state)["shape"][-1]}


def _normalization(graph: onnx.GraphProto) -> dict[str, Any] | None:
    """Mean and scale of the normalization in the model; None for a model without normalization."""
    found = {
        part: numpy_helper.to_array(tensor).tolist()
        for tensor in graph.initializer
        for part in ("mean", "scale")
        if tensor.name.endswith(f"normalizer.{part}")
    }
    return {"in_model": True, **found} if found else None


def _evaluation(evaluation: Mapping[str, Any] | None, mean_return: float | None) -> dict[str, Any] | None:
    if evaluation is None:
        return None if mean_return is None else {"mean_return": mean_return}
    returns = evaluation["returns"]
    return {
        "mean_return": sum(returns) / len(returns),
        "min_return": min(returns),
        "max_return": max(returns),
        "episodes": len(returns),
        "scheme": evaluation["scheme"],
    }
