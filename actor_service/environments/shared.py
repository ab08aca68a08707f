"""One environment object that an explorer and an evaluator share. They alternate by episodes."""

import threading
from collections import deque
from typing import Any

import gymnasium

_Environment = gymnasium.Env[Any, Any]


class SharedEnvironment:
    """A single environment object with several users, such as an open simulator.

    A user has it from a reset until the episode ends. Waiting users get it in the order of their resets.
    """

    def __init__(self, environment: _Environment) -> None:
        self.environment = environment
        self._changed = threading.Condition()
        self._waiting: deque[User] = deque()
        self._holder: User | None = None

    def take(self, user: "User") -> None:
        """Wait for the environment, unless this user has it."""
        with self._changed:
            if self._holder is user:
                return
            self._waiting.append(user)
            self._changed.wait_for(lambda: self._holder is None and self._waiting[0] is user)
            self._waiting.popleft()
            self._holder = user

    def release(self, user: "User") -> None:
        """Pass the environment to the next user, if this user has it."""
        with self._changed:
            if self._holder is user:
                self._holder = None
                self._changed.notify_all()


class User:
    """One user of a shared environment. `make` is its factory of environments."""

    def __init__(self, shared: SharedEnvironment) -> None:
        self._shared = shared

    def make(self) -> _Environment:
        """The environment as this user sees it."""
        return _View(self._shared, self)

    def release(self) -> None:
        """Release the environment to the other users: no step follows before the next reset."""
        self._shared.release(self)


class _View(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The shared environment for one user.

    Closing the view does not close the environment, which belongs to its opener.
    """

    def __init__(self, shared: SharedEnvironment, user: User) -> None:
        super().__init__(shared.environment)
        self._turns, self._user = shared, user

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Give waiting users the environment first, then begin an episode."""
        self._turns.release(self._user)
        self._turns.take(self._user)
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step in this user's episode."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            self._turns.release(self._user)
        return observation, reward, bool(terminated), bool(truncated), info

    def close(self) -> None:
        """Release the environment to the other users."""
        self._turns.release(self._user)
