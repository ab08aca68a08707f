"""The environment with doors: its masks, the lives of its agents, its best return, and its form for other libraries."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from actor_service.environments import make_environments
from actorq.domain.leaves import ACTION_MASK
from benchmarks.environments.doors import (
    AGENTS,
    AIR,
    AWAY,
    DOORS,
    LIVES,
    OPEN,
    STEPS,
    Doors,
    best_return,
    first_air,
    right_door,
)
from benchmarks.libraries.peer_runs.lives import ALL, Lives, make

Observation = dict[str, Any]


def numbers_of(observation: Observation) -> tuple[int, int]:
    seen = observation["observation"]
    return int(seen[:DOORS].argmax()), int(seen[DOORS : 2 * DOORS].argmax())


def right(observation: Observation) -> int:
    return right_door(numbers_of(observation), observation["action_mask"])


def wrong(observation: Observation) -> int:
    doors = np.flatnonzero(observation["action_mask"])
    return int(doors[doors != right(observation)][0])


@pytest.mark.parametrize(
    ("numbers", "opened", "door"), [((7, 5), (0, 2, 3), 2), ((4, 1), (1, 4, 5), 5), ((4, 1), (1, 2, 4), 1)]
)
def test_the_right_door_is_the_first_open_one_from_the_sum_on(
    numbers: tuple[int, int], opened: tuple[int, ...], door: int
) -> None:
    mask = np.zeros(DOORS, np.int8)
    mask[list(opened)] = 1
    assert right_door(numbers, mask) == door


def test_a_team_without_a_wrong_door_has_the_best_return() -> None:
    environment = Doors()
    for seed in range(3):
        observations, _ = environment.reset(seed=seed)
        total, steps = 0.0, 0
        while environment.agents:
            actions = {agent: right(observations[agent]) for agent in environment.agents}
            observations, rewards, *_ = environment.step(actions)
            total, steps = total + sum(rewards.values()), steps + 1
        assert (total, steps) == (best_return(), STEPS)


def test_no_policy_exceeds_the_best_return() -> None:
    # A wrong door has no reward, and ends a life before its air does: it only costs steps.
    rng, environment = np.random.default_rng(0), Doors()
    for share in (0.5, 0.9, 0.97):
        observations, _ = environment.reset(seed=1)
        total = 0.0
        while environment.agents:
            chosen = {a: (right if rng.random() < share else wrong)(observations[a]) for a in environment.agents}
            observations, rewards, *_ = environment.step(chosen)
            total += sum(rewards.values())
        assert total < best_return()


def test_each_agent_has_its_own_mask_and_a_closed_door_is_refused() -> None:
    environment = Doors()
    observations, _ = environment.reset(seed=4)
    masks = {agent: observations[agent]["action_mask"] for agent in AGENTS}
    assert {int(mask.sum()) for mask in masks.values()} == {OPEN}
    assert len({mask.tobytes() for mask in masks.values()}) > 1
    closed = {agent: int((1 - masks[agent]).argmax()) for agent in AGENTS}
    with pytest.raises(ValueError, match="of north is closed: open are"):
        environment.step(closed)


def test_an_agent_leaves_after_a_wrong_door_and_when_its_air_is_used_up_and_comes_back() -> None:
    environment = Doors()
    observations, _ = environment.reset(seed=2)
    present: dict[str, list[int]] = {agent: [] for agent in AGENTS}
    for step in range(STEPS):
        for agent in environment.agents:
            present[agent].append(step)
            assert environment.observation_space(agent).contains(observations[agent])
        # East chooses a wrong door in its third step.
        actions = {
            agent: wrong(observations[agent]) if (agent, step) == ("east", 2) else right(observations[agent])
            for agent in environment.agents
        }
        observations, rewards, terminated, truncated, _ = environment.step(actions)
        assert rewards == {agent: float((agent, step) != ("east", 2)) for agent in actions}
        if step == 2:
            assert terminated == {agent: agent == "east" for agent in AGENTS}
        if step == STEPS - 1:
            assert not environment.agents
            assert all(terminated[agent] != truncated[agent] for agent in actions)
        else:
            assert not any(truncated.values())
    air = first_air(0)
    assert present["north"][: air + 1] == [*range(air), air + AWAY]
    assert present["east"][:4] == [0, 1, 2, 3 + AWAY]
    assert present["east"][3 : 3 + AIR] == [*range(3 + AWAY, 3 + AWAY + AIR)]


def test_an_actor_sees_masks_and_absent_agents() -> None:
    environments = make_environments("benchmarks.environments.doors:Doors", 2)
    assert environments.spec.agents == AGENTS
    assert environments.spec.sizes == (DOORS,)
    assert any(leaf.name == ACTION_MASK for leaf in environments.spec.leaves)
    environments.reset(3)
    assert environments.present.all()
    environments.close()


def played(lives: Lives, choose: Any, seed: int) -> tuple[float, dict[str, int]]:
    """The return, and the number of actions of each life."""
    observations, _ = lives.reset(seed)
    total, counts, over = 0.0, dict.fromkeys(lives.names, 0), False
    ended: set[str] = set()
    waiting = {*observations}
    while not over:
        assert not waiting & ended
        for name in waiting:
            counts[name] += 1
        found, rewards, terminated, truncated, _ = lives.step({name: choose(observations[name]) for name in waiting})
        over = terminated[ALL] or truncated[ALL]
        ended |= {name for name in waiting if terminated[name] or truncated[name]}
        observations, waiting = found, {*found} - ended
        total += sum(rewards.values())
    return total, counts


def test_each_life_is_an_agent_of_its_own_for_other_libraries() -> None:
    lives = Lives(Doors(), LIVES)

    def choose(observation: Observation) -> int:
        assert observation["action_mask"].dtype == np.float32
        assert lives.observations.contains(observation)
        return right({"observation": observation["observations"], "action_mask": observation["action_mask"]})

    total, counts = played(lives, choose, 0)
    assert total == best_return() == sum(counts.values())
    assert [counts[name] for name in ("north", "north#1", "east")] == [AIR, AIR, first_air(1)]
    # Any number of wrong doors fits.
    for seed in range(20):
        _, counts = played(lives, lambda seen: int(seen["action_mask"].argmax()), seed)
        assert sum(counts.values()) > 0


class Relay:
    """Two agents in turn: each acts once, leaves with its step, and the other one comes with the same step."""

    possible_agents = ("left", "right")

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.taken: list[dict[str, int]] = []

    def observation_space(self, agent: str) -> spaces.Box:
        return spaces.Box(0.0, 9.0, (1,), np.float32)

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents = ["left"]
        return {"left": np.zeros(1)}, {}

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        (acting,) = actions
        self.taken.append(actions)
        self.agents = [] if len(self.taken) == 4 else ["left" if acting == "right" else "right"]
        seen = {agent: np.full(1, float(len(self.taken))) for agent in (acting, *self.agents)}
        return seen, {acting: 1.0}, {acting: True}, {acting: False}, {}


def test_a_life_ends_a_step_later_if_all_end_while_others_begin() -> None:
    relay = Relay()
    lives = Lives(relay, 2)
    known, done, observations = set[str](), set[str](), lives.reset()[0]
    total = 0.0
    for _ in range(4):
        known |= {*observations}
        waiting = {*observations} - done
        observations, rewards, terminated, truncated, _ = lives.step(dict.fromkeys(waiting, 0))
        done |= {name for name, ends in terminated.items() if ends and name != ALL}
        total += sum(rewards.values())
        assert not any(truncated.values())
        # As RLlib decides that an episode is over.
        assert terminated[ALL] or not known <= done
    assert terminated[ALL]
    assert total == 4
    assert done == {"left", "right", "left#1", "right#1"}
    assert [list(each) for each in relay.taken] == [["left"], ["right"], ["left"], ["right"]]


def test_another_library_makes_the_same_environment_from_its_id() -> None:
    pytest.importorskip("mpe2")
    spread = Lives(make("pettingzoo/mpe2/simple_spread_v3"), 1)
    assert spread.names == ["agent_0", "agent_1", "agent_2"]
    assert not spread.has_masks
    assert Lives(make("benchmarks.environments.doors:Doors"), 2).has_masks
    _, counts = played(spread, lambda _: 0, 1)
    assert {*counts.values()} == {25}
