"""The benchmark of the policy server: its policies, and its targets."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorq
from actor_service.external.serve import ExportedFile
from benchmarks.scale.serving.__main__ import CALL, ECHO, MEANINGS, SERVED, targets
from benchmarks.scale.serving.policies import exported


@pytest.mark.parametrize("scheme", ["int8", "fp32"])
def test_its_policies_are_files_of_actorq_export(scheme: str, tmp_path: Path) -> None:
    file, spec = exported(8, scheme, tmp_path)
    policy = actorq.load_policy(file)
    assert policy.scheme == scheme
    assert policy.predict(np.zeros(spec.observations.shape, np.float32)).shape == spec.actions.shape
    assert ExportedFile(file).spec == spec


def _figures(served_ms: float = 1.5, fp32_ms: float = 2.0, answered: int = 10, share: float = 0.5) -> dict[str, Any]:
    def side(p50_ms: float) -> dict[str, float]:
        return {"p50_ms": p50_ms, "p99_ms": 2 * p50_ms}

    single = {
        "units": 256,
        ECHO: side(0.1),
        "int8": {CALL: side(0.6), SERVED: side(served_ms)},
        "fp32": {CALL: side(1.1), SERVED: side(fp32_ms)},
    }
    crowd = {
        ECHO: {"actions_per_s": 1.0, "p99_ms": 1.0, "answered": 10},
        SERVED: {"actions_per_s": share, "p99_ms": 1.0 / share, "answered": answered},
    }
    return {"clients": 10, "single": [single] * 3, "crowd": [crowd] * 3}


def _missed(**changed: Any) -> list[str]:
    return [target.name for target in targets(_figures(**changed)) if not target.met]


def test_what_the_server_adds_to_a_call_decides() -> None:
    assert _missed() == []
    assert _missed(served_ms=1.7) == ["256 units, int8: median ms that the server adds"]
    assert _missed(fp32_ms=1.4) == ["256 units: served int8 over fp32, median"]


def test_every_client_needs_an_answer_and_half_of_the_bare_rate() -> None:
    assert _missed(answered=9) == ["many clients: clients with an answer"]
    assert _missed(share=0.4) == [
        "many clients: actions/s over a bare echo's",
        "many clients: p99 of an answer over a bare echo's",
    ]


def test_each_target_has_an_explanation() -> None:
    for target in targets(_figures()):
        assert any(re.fullmatch(meaning.pattern, target.name) for meaning in MEANINGS), target.name
