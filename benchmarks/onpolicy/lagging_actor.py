"""`python -m benchmarks.onpolicy.lagging_actor`: an actor with the policy of eight versions before the newest.

`actorq train --actor-module` with its name starts it. Each segment records the version that really acted.
"""

import sys
from collections import deque
from collections.abc import Collection
from functools import partial
from typing import cast

from actor_service.policies.policy import LoadPolicy, OnnxPolicy, load_policy
from actor_service.process import run_actor
from actorq.domain.policy import Policy
from actorq.domain.spaces import EnvironmentSpec
from actorq.process import main

LAG = 8


class LaggingLoader:
    """Loads the policy that it got `LAG` calls before; the first one until then."""

    def __init__(self) -> None:
        self._newest: deque[Policy] = deque(maxlen=LAG + 1)

    def __call__(self, policy: Policy, spec: EnvironmentSpec, batch: int, needs: Collection[str] = ()) -> OnnxPolicy:
        """Load a policy for `batch` environments of `spec`."""
        self._newest.append(policy)
        return load_policy(self._newest[0], spec, batch, needs)


if __name__ == "__main__":
    sys.exit(main(partial(run_actor, load=cast(LoadPolicy, LaggingLoader()))))
