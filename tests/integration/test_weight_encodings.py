"""Runs whose actors need unsigned weights, and runs whose actors need different encodings."""

import json
from contextlib import ExitStack
from pathlib import Path

from actorq.arithmetic import arithmetic
from actorq.client import LearnerClient, QuantizerClient
from actorq.domain.policy import UNSIGNED, WEIGHT_ENCODINGS, Variant
from actorq.domain.status import RunStatus
from tests.builders.emulation import ended_without_dot_product
from tests.builders.service_process import service_process

_PATIENCE_S = 150.0


def test_without_a_dot_product_a_run_acts_in_int8_from_its_first_policy(tmp_path: Path) -> None:
    run = tmp_path / "run"
    # Its settings are the defaults, except for an early end.
    budget = ("--target-return", "501", "--max-environment-steps", "6000")
    command = ("-m", "actorq_apps.cli.main", "train", "--run-directory", str(run), "--seed", "1", *budget)

    ended = ended_without_dot_product(*command, emulated=False, timeout_s=_PATIENCE_S)

    assert ended.returncode == 3, ended.stderr[-2000:]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["transitions_by_scheme"] == {"int8": summary["environment_steps"]}
    assert summary["evaluation"]["scheme"] == "int8"
    names = {path.name for path in (run / "policies").glob("*/policy-*.onnx")}
    # Actors compare their first policy with the FP32 policy.
    assert names - {"policy-fp32.onnx"} == {f"policy-{Variant('int8', UNSIGNED)}.onnx"}
    logs = [path.read_text() for path in (run / "logs").glob("*.log")]
    assert len(logs) >= 5
    for text in (ended.stdout + ended.stderr, *logs):
        assert not [line for line in text.splitlines() if "wrongly" in line or "int8-weights" in line]


def test_actors_that_need_different_encodings_act_in_one_run(tmp_path: Path) -> None:
    # A processor without a dot product can act in only one encoding.
    encodings = arithmetic().weight_encodings
    with ExitStack() as stack:
        # A gate that passes every policy, even of an untrained learner.
        store = ("--store", str(tmp_path / "policies"), "--quantizer.gate.min-agreement", "0")
        quantizer = stack.enter_context(service_process("quantizer", *store))
        endless = ("--target-return", "1000", "--max-environment-steps", "100000000")
        state = ("--run-directory", str(tmp_path / "run"), "--quantizer", quantizer.address, *endless)
        learner = stack.enter_context(service_process("learner", *state))
        peers = ("--learner", learner.address, "--quantizer", quantizer.address)
        for index, encoding in enumerate(encodings):
            own = ("--name", f"actor-{index}", "--weight-encoding", encoding)
            stack.enter_context(service_process("actor", *peers, *own))

        with LearnerClient(learner.address) as client:
            status = next(each for each in client.watch(period_s=0.1) if compared(each) == len(encodings))
        for actor in status.actors:
            assert actor.report is not None
            assert (actor.report.scheme, actor.report.avoided_scheme) == ("int8", "")

        with QuantizerClient(quantizer.address) as client:
            stored = client.list()[0]
            assert set(stored.variants) >= {Variant("int8", encoding) for encoding in encodings}
            policies = []
            for encoding in WEIGHT_ENCODINGS:
                client.weight_encoding = encoding
                policies.append(client.get("int8", stored.version))
        signed, unsigned = (policy.descriptor for policy in policies)
        assert (signed.variant, unsigned.variant) == tuple(Variant("int8", each) for each in WEIGHT_ENCODINGS)
        assert signed.fidelity == unsigned.fidelity


def compared(status: RunStatus) -> int:
    """Number of actors that have compared an int8 policy with its FP32 policy."""
    return sum(actor.report is not None and actor.report.scheme_error > 0 for actor in status.actors)
