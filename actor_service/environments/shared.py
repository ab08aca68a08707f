"""One environment object that an explorer and an evaluator share: they take turns, an episode at a time."""

import threading
from collections import deque
from typing import Any

import gymnasium

_Environment = gymnasium.Env[Any, Any]


class SharedEnvironment:
    """An environment of which there is only one, such as an open simulator.

    Each user has it from a reset until the episode ends. Users that wait get it in the order of their resets.
    """

    def __init__(self, environment: _Environment) -> None:
        self.environment = environment
        self._changed = threading.Condition()
        self._waiting: deque[User] = deque()
        self._holder: User | None = None

    def take(self, user: "User") -> None:
        """Wait for the environment, unless the user has it."""
        with self._changed:
            if self._holder is user:
                return
            self._waiting.append(user)
            self._changed.wait_for(lambda: self._holder is None and self._waiting[0] is user)
            self._waiting.popleft()
            self._holder = user

    def release(self, user: "User") -> None:
        """Leave the environment to the next user, if this one has it."""
        with self._changed:
            if self._holder is user:
                self._holder = None
                self._changed.notify_all()


class User:
    """One of those who share an environment. `make` is its factory of environments."""

    def __init__(self, shared: SharedEnvironment) -> None:
        self._shared = shared

    def make(self) -> _Environment:
        """The environment as this user sees it."""
        return _View(self._shared, self)

    def release(self) -> None:
        """Leave the environment to the others: no step follows before the next reset."""
        self._shared.release(self)


class _View(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The shared environment for one user. Closing it does not close the environment, which its owner opened."""

    def __init__(self, shared: SharedEnvironment, user: User) -> None:
        super().__init__(shared.environment)
        self._turns, self._user = shared, user

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Let a waiting user have its episode first, then begin one."""
        self._turns.release(self._user)
        self._turns.take(self._user)
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step of the own episode."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            self._turns.release(self._user)
        return observation, reward, bool(terminated), bool(truncated), info

    def close(self) -> None:
        """Leave the environment to the others."""
        self._turns.release(self._user)
