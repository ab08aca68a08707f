"""Runs on disk with policies that act, for the tests of what reads a run's folder."""

from pathlib import Path

from actorq.config.run_config import RunConfig
from actorq.domain.policy import Checkpoint, PolicyGraph
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.rundirectory import RunDirectory
from actorq.statefiles.documents import write_twice
from actorq.statefiles.lines import encode_line
from quantizer_service.emission.emitter import Emitter
from quantizer_service.store.store import PolicyStore
from tests.quantizer_service.policy_graphs import ACTIONS, OBSERVATION_SIZE

DISCRETE = EnvironmentSpec("Own-v0", ArraySpec((OBSERVATION_SIZE,), "float32"), ArraySpec((), "int64"), (ACTIONS,))
CONTINUOUS = EnvironmentSpec(
    "Own-v0", ArraySpec((OBSERVATION_SIZE,), "float32"), ArraySpec((ACTIONS,), "float32", (-1.0,), (1.0,)), ()
)


def stored_run(
    root: Path,
    graph: PolicyGraph,
    checkpoints: list[Checkpoint],
    returns: dict[int, float] | None = None,
    spec: EnvironmentSpec = DISCRETE,
    scheme: str = "int8",
    **changes: object,
) -> RunDirectory:
    """The folder of a run that has published these checkpoints; `returns` are evaluations by version.

    changes: of the run's configuration.
    """
    run = RunDirectory(root)
    config = RunConfig.model_validate({"environment": "Own-v0", "scheme": scheme, **changes})
    run.create(config)
    write_twice(root / "environment.json", spec.to_json())
    store = PolicyStore(run.policies, 10, 1)
    store.claim("run")
    emitter = Emitter(store, config.resolved_quantizer())
    emitter.add_graph(graph)
    for checkpoint in checkpoints:
        emitter.publish(checkpoint, [scheme])
    for version, mean_return in (returns or {}).items():
        store.add_evaluation(version, mean_return)
        evaluation = {"policy_version": version, "scheme": scheme, "returns": [mean_return - 1, mean_return + 1]}
        with run.evaluations.open("ab") as log:
            log.write(encode_line({"evaluation": evaluation}))
    store.close()
    return run
