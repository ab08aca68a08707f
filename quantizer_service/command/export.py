"""`actorq export`: writes a policy of a run as an ONNX file, with a JSON file that describes it."""

import argparse
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from actorq.arithmetic import arithmetic
from actorq.config import schemes, settings
from actorq.config.numbers import PositiveInt
from actorq.config.parser import OneLineParser
from actorq.config.sections import NO_LIMITS
from actorq.config.settings import DefaultText, Settings
from actorq.domain.environments import Group
from actorq.domain.policy import FP32, SIGNED, Policy, RetainedPolicy, Variant, variant_of
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import InvalidInputError, NotFoundError, UserError
from actorq.inference import description_file
from actorq.inference.runpolicies import RunPolicies, newest_evaluation
from actorq.process import EXIT_OK, EXIT_REFUSED
from actorq.quantization.description import describe
from actorq.quantization.schemes import Emission
from actorq.quantization.standard_form import standard_form
from actorq.rundirectory import RunDirectory
from actorq.start import run_command
from actorq.statefiles.files import replace_together
from actorq.weightencoding import in_weight_encoding, weight_encoding_of
from quantizer_service.emission.emitter import Emitter
from quantizer_service.emission.fidelity import measure_all
from quantizer_service.store.reader import PolicyReader

_PROGRAM = "actorq export"
_DESCRIPTION = """Write a policy of a run as an ONNX file, and a JSON file in the same folder. The JSON file has the
specs of observations and actions, fidelity, evaluation and digest. The run may continue meanwhile. Settings of this
command are flags only. Exit codes: 0; 2 for invalid input; 7 for a scheme that the fidelity gate refused. After 7
nothing is written."""


class ExportSettings(Settings):
    """The policy to export, and its form."""

    version: Annotated[
        schemes.VersionChoice | None, DefaultText("the best, or the newest if no version is evaluated")
    ] = Field(None, description="version of the policy: best, newest or a number; actorq policies lists them")
    scheme: Annotated[schemes.SchemeName | None, DefaultText("the scheme of the run's actors")] = Field(
        None, description="number format of the policy"
    )
    weight_encoding: schemes.ExportEncoding = Field(None, description=schemes.ENCODING_HELP)
    form: schemes.Form = Field("onnxruntime", description=schemes.FORM_HELP)
    group: Annotated[str | None, DefaultText("the policy of all groups")] = Field(
        None, description="group of agents whose policy to export alone, of a run with policies"
    )
    opset: Annotated[
        PositiveInt | None, DefaultText("that of the policy's graph; at least 19, for int4 at least 21")
    ] = Field(None, description="version of the ONNX operator set, for the standard form")
    output: Path = Field(Path("policy.onnx"), description="file to write; its description ends in .json")
    force: bool = Field(False, description="replace files, and write a scheme that the fidelity gate refused")


def command() -> int:
    """Run as a command. The command itself prints refusals."""
    logging.getLogger("quantizer_service.emission.ladder").setLevel(logging.ERROR)
    return run_command(run)


def run(arguments: Sequence[str] | None = None) -> int:
    """Emit the policy in the requested scheme if the store lacks it, and write it."""
    root, how = _parse(arguments)
    if how.opset and how.form != schemes.STANDARD:
        raise UserError("--opset: only the standard form has a choice of opset; give --form standard")
    _check_output(how)
    policies = RunPolicies(RunDirectory(root))
    version = policies.find(how.version or "")
    spec = policies.run.read_environment()
    _check_group(root, spec, how.group)
    try:
        return _export(policies, version, spec, how)
    except NotFoundError as error:
        raise UserError(f"{error}; actorq policies {root} lists the versions") from None
    except InvalidInputError as error:
        raise UserError(f"version {version.version}: {error}") from None


def _parse(arguments: Sequence[str] | None) -> tuple[Path, ExportSettings]:
    parser = OneLineParser(prog=_PROGRAM, usage=f"{_PROGRAM} RUN_DIR [flags]", description=_DESCRIPTION)
    parser.add_argument("run", type=Path, metavar="RUN_DIR", help="folder of the run")
    settings.add_flags(parser, ExportSettings, "export")
    parser.add_argument(
        "-o", dest="output", type=Path, metavar="FILE", default=argparse.SUPPRESS, help="the same as --output"
    )
    namespace = parser.parse_args(arguments)
    return namespace.run, settings.build(ExportSettings, settings.from_flags(ExportSettings, namespace))


def _check_group(root: Path, spec: EnvironmentSpec, name: str | None) -> None:
    known = ", ".join(group.name for group in spec.groups)
    if name is not None and not known:
        raise UserError(f"--group: the policy of {root} is one for all, got {name}; leave --group out")
    if name is not None and all(group.name != name for group in spec.groups):
        raise UserError(f"--group: expected a group of {root} ({known}), got {name}")


def _check_output(how: ExportSettings) -> None:
    path = how.output
    if path.suffix != ".onnx":
        raise UserError(f"--output: expected a name that ends in .onnx, got {path}")
    if not path.absolute().parent.is_dir():
        raise UserError(f"--output: there is no folder {path.parent}")
    for each in (path, description_file(path)):
        if each.exists() and not how.force:
            raise UserError(f"--output: {each} is there already; give --force to replace it, or another name")


def _export(policies: RunPolicies, version: RetainedPolicy, environment: EnvironmentSpec, how: ExportSettings) -> int:
    config, store = policies.config, PolicyReader(policies.run.policies)
    emitter = Emitter(store, config.resolved_quantizer())
    scheme = how.scheme or policies.scheme_of(version)
    checkpoint, group = store.checkpoint(version.version), None
    if how.group is None:
        policy, seen = emitter.catalog.get(Variant(scheme), version.version), checkpoint
    else:
        policy, seen = emitter.emit_group(checkpoint, scheme, how.group)
        group = next(each for each in environment.groups if each.name == how.group)
    if _is_refused(policy):
        if not how.force:
            advice = f"nothing is written; give --scheme {FP32}, or --force to write {scheme}"
            sys.stderr.write(f"error: {_refusal(policy, config.quantizer.gate.max_state_drift)}: {advice}\n")
            return EXIT_REFUSED
        if group is None:
            policy = emitter.emit_again(checkpoint, scheme, NO_LIMITS)
        else:
            policy, seen = emitter.emit_group(checkpoint, scheme, group.name, NO_LIMITS)
        report = replace(policy.descriptor.fidelity, passed=False)
        policy = replace(policy, descriptor=replace(policy.descriptor, fidelity=report))
    here, is_standard = arithmetic().weight_encoding, how.form == schemes.STANDARD
    # Most other runtimes expect signed weights.
    encoding = how.weight_encoding or (SIGNED if is_standard else here)
    policy = in_weight_encoding(policy, variant_of(scheme, encoding).weight_encoding)
    written = weight_encoding_of(policy.model)
    if is_standard:
        model, stored = standard_form(policy.model, how.opset or 0), policy.descriptor.fidelity
        # The fidelity of this form, measured with weights that this processor computes exactly.
        encoded = in_weight_encoding(policy, variant_of(scheme, here).weight_encoding)
        exact = standard_form(encoded.model, how.opset or 0)
        report = measure_all(Emission(exact, stored.layers), *emitter.reference_run(seen))
        report = replace(report, passed=stored.passed, refused=stored.refused)
        policy = Policy(replace(policy.descriptor, fidelity=report), model)
    evaluation = newest_evaluation(policies.run.evaluations, version)
    if group is not None:
        evaluation, version = _of_group(evaluation, group), replace(version, mean_return=None)
    description = describe(
        how.output.name, policy, version, environment, config.algorithm, evaluation, how.form, written, group
    )
    _write(how.output, policy.model, description)
    return EXIT_OK


def _of_group(evaluation: Mapping[str, Any] | None, group: Group) -> Mapping[str, Any] | None:
    """An evaluation with the returns of one group: the sums over its agents."""
    if evaluation is None:
        return None
    agents = evaluation["agents"]
    returns = np.reshape(evaluation["agent_returns"], (-1, len(agents)))
    own = returns[:, [agents.index(agent) for agent in group.agents]]
    return {**evaluation, "returns": own.sum(axis=1).tolist()}


def _is_refused(policy: Policy) -> bool:
    """Whether the gate has put all layers that the scheme quantizes in float."""
    descriptor = policy.descriptor
    return descriptor.scheme != descriptor.effective_scheme and bool(descriptor.fidelity.gated_layers)


def _refusal(policy: Policy, most_drift: float) -> str:
    found = f"version {policy.descriptor.version}: the fidelity gate refused scheme {policy.descriptor.scheme}"
    if not policy.descriptor.fidelity.refused:
        return found
    rung = policy.descriptor.fidelity.refused[0]
    if rung.state_drift is not None and rung.state_drift > most_drift:
        return f"{found} (drift of the state: {rung.state_drift:.1%} of its range)"
    if rung.mean_kl is not None:
        return f"{found} (KL divergence from fp32: mean {rung.mean_kl:.2g} nats, largest {rung.max_kl:.2g})"
    if rung.argmax_agreement is not None:
        return f"{found} (the same action as fp32 in {rung.argmax_agreement:.1%} of the observations)"
    return f"{found} (action error: mean {rung.relative_mean_error:.1%}, largest {rung.relative_max_error:.1%})"


def _write(path: Path, model: bytes, description: Mapping[str, Any]) -> None:
    try:
        replace_together({path: model, description_file(path): json.dumps(description, indent=2) + "\n"})
    except OSError as error:
        raise UserError(f"--output: cannot write {path}: {error.strerror}") from None
    effective, scheme = description["effective_scheme"], description["scheme"]
    acts = scheme if effective == scheme else f"{scheme} (in effect {effective})"
    if description["weight_encoding"] is not None:
        acts += f" with {description['weight_encoding']} weights"
    sys.stdout.write(
        f"{path}: version {description['version']}, {acts}, {description['form']} form, {len(model):,} bytes\n"
        f"{description_file(path)}: its description\n"
    )
    if not description["fidelity"]["passed"]:
        sys.stderr.write(f"warning: the fidelity gate refused {scheme}; written because of --force\n")
