"""Quantization-aware training: from a share of the run on, updates run the policy as its actors run it.

Every forward pass of the policy that is being trained is fake-quantized: those whose loss is minimized, and those that
choose actions for a target, as DQN's online network does in double DQN. Both stand for what actors do with these
weights, and the gradient then sees, and evens out, the error that they act with. Target networks are left in float. No
actor ever runs them; they are what values are regressed to, and there rounding would be noise and nothing else.

It works for every algorithm, without its knowledge: what is replaced are the layers of `Algorithm.policy`.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import NDArray

from actorq.domain.policy import LayerReport, PolicyDescriptor
from learner_service.quantization.fake_quantization import FakeQuantization

_log = logging.getLogger(__name__)


class QuantizationAware:
    """Switches fake quantization on when the time has come, and keeps it in step with what the quantizer emits.

    starts_at: environment steps from which on it is on; None for never.

    Once on it stays on, also when the run is resumed. It begins with the first receipt that names a quantized layer,
    and pauses while nothing is quantized, as when the fidelity gate let only fp32 through. `follow` may be called from
    any thread; everything else belongs to the trainer's.
    """

    def __init__(self, fake: FakeQuantization, starts_at: float | None) -> None:
        self.since: int | None = None
        """Gradient updates before the first that was quantization-aware; None before it."""
        self._fake = fake
        self._starts_at = starts_at
        self._lock = threading.Lock()
        self._newest: tuple[str, tuple[LayerReport, ...]] | None = None
        self._followed: tuple[str, tuple[LayerReport, ...]] | None = None
        self._calibration: NDArray[Any] | None = None
        self._calibrated = False

    def follow(self, policy: PolicyDescriptor) -> None:
        """A version was emitted: train as its actors run it."""
        with self._lock:
            self._newest = (policy.effective_scheme, policy.fidelity.layers)

    def published(self, calibration: NDArray[Any]) -> None:
        """The policy goes out as it is now, to be calibrated on these observations, [B, *observation]."""
        self._calibration, self._calibrated = calibration, False

    @contextmanager
    def applied(self, updates: int, environment_steps: int) -> Iterator[None]:
        """While it lasts the policy computes what its actors compute, if the time has come.

        updates, environment_steps: done so far.
        """
        if not self._is_on(environment_steps) or not self._keep_up():
            yield
            return
        if self.since is None:
            self.since = updates
            _log.info("training is quantization-aware from update %d on", updates)
        with self._fake.applied():
            yield

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, as JSON values."""
        with self._lock:
            scheme, layers = self._newest or ("", ())
        return {
            "since": self.since,
            "scheme": scheme,
            "layers": [[layer.name, layer.weights, layer.reason] for layer in layers],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; `since` is forgotten when the run goes on without it."""
        self.since = state["since"] if self._starts_at is not None else None
        if state["scheme"]:
            self._newest = (state["scheme"], tuple(LayerReport(*layer) for layer in state["layers"]))

    def _is_on(self, environment_steps: int) -> bool:
        return self._starts_at is not None and (self.since is not None or environment_steps >= self._starts_at)

    def _keep_up(self) -> bool:
        """Follow the newest receipt; whether any layer is quantized."""
        with self._lock:
            newest = self._newest
        if newest is not None and newest != self._followed:
            before = self._fake.layers
            self._fake.follow(*newest)
            self._followed, self._calibrated = newest, False
            # How their weights are held may change with every version.
            if self._fake.layers != before:
                _log.info("training follows %s: %s", newest[0], ", ".join(self._fake.layers) or "no layer is quantized")
        if not self._fake.layers:
            return False
        if not self._calibrated and self._calibration is not None:
            self._fake.calibrate(torch.from_numpy(self._calibration))
            self._calibrated = True
        return True
