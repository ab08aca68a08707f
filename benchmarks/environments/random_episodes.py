"""`python -m benchmarks.environments.random_episodes ID ARGUMENTS EPISODES`: returns of random actions, as JSON.

It runs in a separate process, whose module path has the environment's package.
"""

import json
import sys

import numpy as np

from actor_service.environments import make_environments
from actorq.domain.environments import EnvironmentArguments

_SEED = 1
# Step limit for an environment whose episodes rarely end with random actions.
_MOST_STEPS = 50_000


def _main(environment: str, arguments: str, episodes: int) -> None:
    batch = make_environments(environment, 1, arguments=EnvironmentArguments.from_text(arguments).for_evaluations())
    spec, rng = batch.spec, np.random.default_rng(_SEED)
    low, high = spec.actions.bounds()
    returns: list[float] = []
    batch.reset(_SEED)
    for _ in range(_MOST_STEPS):
        if spec.sizes:
            actions = rng.integers(spec.acting_size, size=1)
        else:
            actions = rng.uniform(low, high)[None].astype(np.float32)
        returns += [episode.episode_return for episode in batch.step(actions).episodes]
        if len(returns) >= episodes:
            break
    batch.close()
    # The environment may have printed lines before.
    print(json.dumps(returns))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
