"""Plays the same episodes with every rounded form of a run's policy."""

from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.environments import Environments, make_environments
from actor_service.policies.policy import OnnxPolicy
from actor_service.roles.evaluation import EvaluationEpisodes
from actorq.domain.policy import BEST, FP32, chosen_version
from actorq.domain.signature import Role
from actorq.quantization.calibration import Batch, evenly_spaced
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import Emission
from benchmarks.policies import as_policy
from benchmarks.policy.bits.forms import FORMS, Form, RoundedPolicy, forms_of
from quantizer_service.store.reader import PolicyReader

# Seeds of the episodes that count, of the episodes for the ranges of activations, and of random actions.
_SEED, _RANGES_SEED, _RANDOM_SEED = 2_000, 3_000, 4_000
_RANDOM_EPISODES = 100
# Observations of the ranges' episodes that are used.
_ROWS = 4_096


class Evaluation:
    """Evaluates a policy of a run in rounded forms, on the same episodes. Close it after use.

    The policy is the best version by the run's own evaluations, among versions after `since` updates; without an
    evaluation the newest version.

    folder: of the run. episodes: the number of episodes, one in each environment. The ranges of activations come from
    as many other episodes of the FP32 policy.
    """

    def __init__(self, folder: Path, environment: str, episodes: int, since: int = 0) -> None:
        reader = PolicyReader(folder / "policies")
        late = [each for each in reader.versions() if each.learner_step >= since]
        self.version = (chosen_version(BEST, late) or reader.versions()[0]).version
        checkpoint = reader.checkpoint(self.version)
        self.graph = Graph.parse(reader.graphs[checkpoint.graph_digest])
        self._checkpoint = checkpoint
        environments = make_environments(environment, episodes)
        self._episodes = EvaluationEpisodes(environments, episodes)
        bounds = None if self.graph.signature.is_discrete else environments.spec.actions.bounds()
        plain = RoundedPolicy(self.graph, checkpoint.parameters, checkpoint.calibration, bounds)
        loaded = self._loaded(plain.model(Form()))
        calibration = observed(self._episodes, loaded, self.graph, _RANGES_SEED)
        self._policy = RoundedPolicy(self.graph, checkpoint.parameters, calibration, bounds)
        self._known: dict[Form, float] = {}

    def mean_return(self, form: Form) -> float:
        """Mean return of the policy in this form."""
        if form not in self._known:
            self._known[form] = self._played(self._loaded(self._policy.model(form)), _SEED)
        return self._known[form]

    def mean_returns(self, bits: Iterable[int]) -> dict[str, dict[str, float]]:
        """Mean returns by the name of the form and by its bits, which are texts as in JSON."""
        wanted = sorted(bits)
        return {name: {str(n): self.mean_return(FORMS[name](n)) for n in wanted} for name in forms_of(self.graph)}

    def close(self) -> None:
        """Release the environments."""
        self._episodes.close()

    def _loaded(self, model: bytes) -> OnnxPolicy:
        return self._episodes.load(as_policy(self.graph.source, self._checkpoint, FP32, Emission(model, ())))

    def _played(self, policy: OnnxPolicy, seed: int) -> float:
        """The mean return over the episodes of this seed."""
        return self._episodes.run(policy, seed, 1, Event()).mean_return


def observed(episodes: EvaluationEpisodes, policy: OnnxPolicy, graph: Graph, seed: int) -> Batch:
    """Observations of a policy in greedy episodes of this seed, evenly spaced, with zeros for other inputs."""
    calls: list[NDArray[Any]] = []
    policy.on_observations = lambda _, observations: calls.append(observations.copy())
    episodes.run(policy, seed, 1, Event())
    policy.on_observations = None
    seen = np.concatenate(calls)
    found: dict[str, NDArray[Any]] = {}
    for port in graph.signature.inputs:
        spec, is_observation = graph.inputs[port.name], port.role is Role.OBSERVATION
        found[port.name] = seen if is_observation else np.zeros((len(seen), *spec.shape), spec.dtype)
    return evenly_spaced(found, _ROWS)


def evaluated(folder: Path, environment: str, episodes: int, bits: Iterable[int], since: int = 0) -> Mapping[str, Any]:
    """Mean returns of the policy of an Evaluation: `fp32`, `random`, and `returns` of each form by its bits."""
    with closing(Evaluation(folder, environment, episodes, since)) as evaluation:
        fp32, returns = evaluation.mean_return(Form()), evaluation.mean_returns(bits)
    with closing(make_environments(environment, _RANDOM_EPISODES)) as environments:
        return {"fp32": fp32, "random": random_return(environments), "returns": returns}


def random_return(environments: Environments) -> float:
    """Mean return of uniformly random actions, over the first episode of each environment."""
    spec, count = environments.spec, environments.count
    rng = np.random.default_rng(_RANDOM_SEED)
    low, high = spec.actions.bounds()
    returns = np.full(count, np.nan)
    environments.reset(_RANDOM_SEED)
    while np.isnan(returns).any():
        if spec.sizes:
            actions: NDArray[Any] = rng.integers(spec.acting_size, size=count)
        else:
            actions = rng.uniform(low, high, (count, *low.shape)).astype(np.float32)
        for episode in environments.step(actions).episodes:
            if np.isnan(returns[episode.environment]):
                returns[episode.environment] = episode.episode_return
    return float(returns.mean())
