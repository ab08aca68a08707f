"""Errors of a run's last policy in quantized schemes, on observations of its own episodes."""

from contextlib import closing
from pathlib import Path

from actor_service.environments import make_environments
from actor_service.roles.evaluation import EvaluationEpisodes
from actorq.domain.policy import FP32
from actorq.quantization.graph import Graph
from benchmarks.policies import as_policy, emit, fidelity_of
from benchmarks.policy.bits.evaluation import observed
from benchmarks.training.normalized.systems import SCHEMES
from quantizer_service.store.reader import PolicyReader

_SEED = 5_000
# Observations per call, as in actors of the preset `auto`. The ranges of int8 cover the rows of a call.
_ROWS = 16


def errors_of(folder: Path, environment: str, episodes: int = 4) -> dict[str, dict[str, float]]:
    """The mean and the largest error of actions by scheme, relative to the range of actions.

    folder: of the run. All quantizable layers are quantized, without the fidelity gate. The observations come from
    greedy episodes of the FP32 policy. They are not the observations of the calibration.
    """
    reader = PolicyReader(folder / "policies")
    checkpoint = reader.checkpoint(reader.versions()[0].version)
    graph = reader.graphs[checkpoint.graph_digest]
    fp32 = as_policy(graph, checkpoint, FP32, emit(graph, checkpoint, FP32))
    with closing(EvaluationEpisodes(make_environments(environment, episodes), episodes)) as runner:
        rows = observed(runner, runner.load(fp32), Graph.parse(graph), _SEED)
    found = {}
    for scheme in SCHEMES:
        report = fidelity_of(graph, checkpoint, emit(graph, checkpoint, scheme), rows, _ROWS)
        found[scheme] = {"mean": report.relative_mean_error, "max": report.relative_max_error}
    return found
