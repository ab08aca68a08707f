"""`python -m benchmarks.speedup.torch_actor`: an ordinary actor whose policy runs in PyTorch FP32, on one thread.

`actorq compare --schemes torch` starts it, and `actorq train --scheme fp32 --actor-module` with this module's name.
"""

import importlib
import sys

import torch

from actor_service.__main__ import _main
from actorq.process import main
from benchmarks.speedup.torch_policy import TorchLoader

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    # The actor loads its policies itself; only this benchmark runs them with another library.
    setattr(importlib.import_module("actor_service.roles.actor"), "load_policy", TorchLoader())  # noqa: B010
    sys.exit(main(_main))
