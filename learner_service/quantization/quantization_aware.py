"""Quantization-aware training: after a set share of the run, updates use the policy as its actors run it.

Every forward pass of the trained policy is fake-quantized. This includes passes that choose actions for a target, as in
double DQN. Both kinds of passes represent the actions of actors, so the gradient includes the rounding error and
corrects it. Target networks stay in float, because no actor runs them. Rounding would only add noise to the targets.
This training works with every algorithm, because it replaces the layers of `Algorithm.policy`.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actorq.domain.policy import LayerReport, PolicyDescriptor
from learner_service.quantization.fake_quantization import FakeQuantization

_log = logging.getLogger(__name__)


class QuantizationAware:
    """Switches fake quantization on at a set step, and follows the layers that the quantizer emits.

    starts_at: environment steps at which it starts; None for never.

    Fake quantization starts with the first receipt that names a quantized layer. It stays on when the run is resumed.
    It pauses while no layer is quantized, for example when only fp32 passes the fidelity gate. Only `follow` may be
    called on another thread.
    """

    def __init__(self, fake: FakeQuantization, starts_at: float | None) -> None:
        self.since: int | None = None
        """Number of updates before the first quantization-aware update; None before that update."""
        self._fake = fake
        self._starts_at = starts_at
        # Another thread replaces the object as a whole.
        self._newest: tuple[str, tuple[LayerReport, ...]] | None = None
        self._followed: tuple[str, tuple[LayerReport, ...]] | None = None
        self._calibration: tuple[NDArray[Any], ...] = ()
        self._calibrated = False

    def follow(self, policy: PolicyDescriptor) -> None:
        """Train with the quantized layers of an emitted version in later updates."""
        self._newest = (policy.effective_scheme, policy.fidelity.layers)

    def published(self, calibration: NDArray[Any], states: NDArray[np.float32] | None = None) -> None:
        """Calibrate again, on the observations of a publication, [B, *observation].

        states: float32[B, S] before them, of a policy with memory.
        """
        self._calibration = (calibration,) if states is None else (calibration, states)
        self._calibrated = False

    @contextmanager
    def applied(self, updates: int, environment_steps: int) -> Iterator[None]:
        """Fake-quantize the policy in this context, once training has reached `starts_at`.

        The arguments are the counts so far.
        """
        starts = self._starts_at is not None and (self.since is not None or environment_steps >= self._starts_at)
        if not starts or not self._keep_up():
            yield
            return
        if self.since is None:
            self.since = updates
            _log.info("training is quantization-aware from update %d on", updates)
        with self._fake.applied():
            yield

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint, as JSON values."""
        scheme, layers = self._newest or ("", ())
        values = [[layer.name, layer.weights, layer.reason] for layer in layers]
        return {"since": self.since, "scheme": scheme, "layers": values}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned. Forgets `since` when the resumed run is not quantization-aware."""
        self.since = state["since"] if self._starts_at is not None else None
        if state["scheme"]:
            self._newest = (state["scheme"], tuple(LayerReport(*layer) for layer in state["layers"]))

    def _keep_up(self) -> bool:
        """Apply the newest receipt. Returns whether any layer is quantized."""
        newest = self._newest
        if newest is not None and newest != self._followed:
            before = self._fake.layers
            self._fake.follow(*newest)
            self._followed, self._calibrated = newest, False
            # Log only changes of the layers. The storage of their weights may change with every version.
            if self._fake.layers != before:
                _log.info("training follows %s: %s", newest[0], ", ".join(self._fake.layers) or "no layer is quantized")
        if not self._fake.layers:
            return False
        if not self._calibrated and self._calibration:
            self._fake.calibrate(*map(torch.from_numpy, self._calibration))
            self._calibrated = True
        return True
