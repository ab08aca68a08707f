"""`actorq evaluate` on a processor that may compute the policy's scheme wrongly."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from actorq.arithmetic import Arithmetic
from actorq.config.run_config import RunConfig
from actorq.domain.policy import SIGNED, UNSIGNED
from actorq.domain.trajectory import Evaluation
from actorq.errors import UserError
from actorq.inference.runpolicies import RunPolicies
from actorq.rundirectory import RunDirectory
from actorq_apps.cli import evaluate
from actorq_apps.local.evaluation import EvaluationResult
from tests.builders.stored_policies import stored_run
from tests.quantizer_service.policy_graphs import mlp
from tests.quantizer_service.policy_runs import checkpoint


@pytest.mark.parametrize(
    ("scheme", "exact", "warns"),
    [
        ("int8", (), True),
        ("int8", (UNSIGNED,), False),
        ("int8", (SIGNED, UNSIGNED), False),
        ("int8-weights", (), False),
    ],
)
def test_reports_a_scheme_that_the_processor_computes_wrongly(
    scheme: str,
    exact: tuple[str, ...],
    warns: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    graph = mlp(8, 8)
    run = stored_run(tmp_path / "run", graph, [checkpoint(graph, 1)], scheme=scheme)
    policies = RunPolicies(run)
    policy = policies.stored(policies.versions[0], scheme).descriptor
    assert policy.effective_scheme == scheme

    def evaluated(*arguments: object) -> Iterator[EvaluationResult]:
        yield EvaluationResult(Evaluation(1, 1, 1, scheme, (5.0,), (5,), 0.1), policy)

    monkeypatch.setattr(evaluate, "arithmetic", lambda: Arithmetic(exact))
    monkeypatch.setattr(evaluate, "evaluate_run", evaluated)
    assert evaluate.run([str(run.root)]) == 0
    told = re.search(f" {scheme} wrongly.*--scheme int8-weights", capsys.readouterr().out)
    assert bool(told) == warns


def test_refuses_a_run_that_imports_a_local_module_without_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "oddities.py").write_text("raise SystemExit('imported')\n")
    run = RunDirectory(tmp_path / "run")
    run.create(RunConfig(environment="oddities:Odd-v0", algorithm="dqn"))
    with pytest.raises(UserError, match=r"oddities .*--allow-modules"):
        evaluate.run([str(run.root)])
    # With the permission, the next error is that the run lacks something.
    with pytest.raises(UserError, match=str(run.policies)):
        evaluate.run([str(run.root), "--allow-modules", "oddities"])
    (tmp_path / "oddities.py").unlink()
    with pytest.raises(UserError, match=str(run.policies)):
        evaluate.run([str(run.root)])
