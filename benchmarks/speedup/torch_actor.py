"""`python -m benchmarks.speedup.torch_actor`: an actor whose policy runs in PyTorch FP32, on one thread.

`actorq compare --schemes torch` starts this module. So does `actorq train --scheme fp32 --actor-module` with its name.
"""

import sys
from functools import partial
from typing import cast

import torch

from actor_service.policies.policy import LoadPolicy
from actor_service.process import run_actor
from actorq.process import main
from benchmarks.speedup.torch_policy import TorchLoader

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    sys.exit(main(partial(run_actor, load=cast(LoadPolicy, TorchLoader()))))
