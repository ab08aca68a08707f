"""An explorer and an evaluator alternate in one environment, by episodes."""

import threading
from typing import Any

import gymnasium
import numpy as np

from actor_service.environments.shared import SharedEnvironment, User


class Recorded(gymnasium.Env[Any, Any]):
    """Episodes of three steps. Records its users, which reset it with their name as option."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.closed = False
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.calls.append(f"reset {(options or {}).get('name')}")
        self._steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.calls.append(f"step {action}")
        self._steps += 1
        return np.zeros(1, np.float32), 0.0, self._steps == 3, False, {}

    def close(self) -> None:
        self.closed = True


def _episodes(view: gymnasium.Env[Any, Any], name: str) -> None:
    for _ in range(50):
        view.reset(options={"name": name})
        while not view.step(name)[2]:
            pass


def test_episodes_of_two_users_never_mix() -> None:
    environment = Recorded()
    shared = SharedEnvironment(environment)
    views = {name: User(shared).make() for name in ("explorer", "evaluator")}
    threads = [threading.Thread(target=_episodes, args=(view, name), daemon=True) for name, view in views.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    episodes = [environment.calls[start : start + 4] for start in range(0, len(environment.calls), 4)]
    assert len(episodes) == 100
    for reset, *steps in episodes:
        assert steps == [reset.replace("reset", "step")] * 3


def test_a_waiting_user_gets_the_next_episode() -> None:
    environment = Recorded()
    shared = SharedEnvironment(environment)
    explorer, evaluator = User(shared).make(), User(shared).make()
    explorer.reset(options={"name": "explorer"})
    begun = threading.Event()

    def evaluate() -> None:
        evaluator.reset(options={"name": "evaluator"})
        begun.set()

    threading.Thread(target=evaluate, daemon=True).start()
    assert not begun.wait(0.05)
    # The explorer cannot begin another episode before the evaluator has had its own.
    thread = threading.Thread(target=explorer.reset, daemon=True)
    while not shared._waiting:
        pass
    thread.start()
    assert begun.wait(10)
    assert environment.calls[:2] == ["reset explorer", "reset evaluator"]
    evaluator.close()
    thread.join(10)
    assert environment.calls[-1] == "reset None"


def test_an_unfinished_episode_is_left_by_release_and_by_close() -> None:
    environment = Recorded()
    shared = SharedEnvironment(environment)
    one, other = User(shared), User(shared)
    one.make().reset()
    one.release()
    view = other.make()
    view.reset()
    view.close()
    one.make().reset()
    assert not environment.closed
