"""A training that begins with another run's networks, normalizers and replay, and what it refuses."""

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actorq import wire
from actorq.client import QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.domain.environments import EnvironmentArguments
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import UserError
from learner_service.actors.members import Member
from learner_service.algorithms import make_algorithm
from learner_service.objectstorage.copies import opened_source
from learner_service.rollouts import RolloutQueue
from learner_service.training.checkpoint import Checkpoints
from learner_service.training.training import Training, build_training
from learner_service.training.warm_start import begin_networks, check_fits
from tests.builders import structured
from tests.learner_service import learner_parts
from tests.learner_service.learner_parts import SPEC, drawn_segment, segment, store_segment

ACTOR = Member("actor-0", "actor", 0, incarnation=1)
# Other dynamics, rewards and time limits, with the same spaces.
LONGER = replace(SPEC, environment_id="Longer-v0", max_episode_steps=100, reward_threshold=50.0)
PENDULUM = EnvironmentSpec("Pendulum-v1", ArraySpec((3,), "float32"), ArraySpec((1,), "float32", (-2.0,), (2.0,)))
STRONGER = replace(PENDULUM, actions=ArraySpec((1,), "float32", (-4.0,), (4.0,)))
NORMALIZED = {"normalize_observations": True}
PPO = {
    "algorithm": "ppo",
    "ppo": {"hidden_sizes": (8,), "value_sizes": (8,), "rollout_size": 16, "batch_size": 8},
    "queue": {"normalize_rewards": True},
    **NORMALIZED,
}


def config(**changes: Any) -> RunConfig:
    """A small run without a bound of an actor's steps, which other batches and algorithms would need to be larger."""
    return learner_parts.config(**{"actor": {"segment_length": 4, "report_period_s": 0.5}, **changes})


@pytest.fixture
def client() -> Iterator[QuantizerClient]:
    with QuantizerClient("127.0.0.1:1") as nobody:
        yield nobody


def build(
    client: QuantizerClient, directory: Path, settings: RunConfig | None = None, spec: EnvironmentSpec = SPEC
) -> Training:
    """Built and not started; with the networks that the settings name."""
    settings = settings or config()
    directory.mkdir(exist_ok=True)
    make = partial(
        build_training,
        *(settings, spec, directory, wire.Opening("run", "int8"), client, None),
        save=lambda updates: Path(str(updates)),
        on_receipt=lambda _: None,
    )
    if settings.init_from is None:
        return make()[0]
    with opened_source(settings, directory, with_rows=True) as source:
        return make(source=source)[0]


def insert(training: Training, *sequences: int) -> None:
    for sequence in sequences:
        assert training.replay.limiter.try_reserve(8)
        made = drawn_segment(sequence) if training.config.on_policy else segment(sequence)
        store_segment(training.intake, ACTOR, made, 8)


def run_of(client: QuantizerClient, directory: Path, segments: int = 4, **changes: Any) -> Path:
    """A run with segments in its replay and a checkpoint after 32 updates. Returns its folder."""
    training = build(client, directory, config(**changes))
    insert(training, *range(1, segments + 1))
    if isinstance(training.replay, RolloutQueue):
        assert training.replay.next_rollout(1.0) is not None
    training.trainer._normalize()
    Checkpoints(directory / "checkpoints", keep=3).save(training.state(32, {}))
    training.close()
    return directory


def spec_of_checkpoint(client: QuantizerClient, directory: Path, spec: EnvironmentSpec, **changes: Any) -> Path:
    training = build(client, directory, config(environment=spec.environment_id, **changes), spec)
    Checkpoints(directory / "checkpoints", keep=3).save(training.state(0, {}))
    training.close()
    return directory


def fit(run: Path, spec: EnvironmentSpec = SPEC, **changes: Any) -> None:
    """What `actorq train` checks before it starts a service."""
    settings = config(environment=spec.environment_id, init_from=str(run), **changes)
    algorithm = make_algorithm(settings, spec)
    with opened_source(settings, run.parent, with_rows=False) as source:
        check_fits(source, settings, spec, algorithm)
        begin_networks(source, settings, algorithm)


def test_a_run_begins_with_networks_and_moments_and_its_own_counts(client: QuantizerClient, tmp_path: Path) -> None:
    run = run_of(client, tmp_path / "other", **NORMALIZED)
    with opened_source(config(init_from=str(run)), tmp_path, with_rows=False) as source:
        theirs = source.state.tensors
    begun = build(client, tmp_path / "run", config(init_from=str(run), seed=7, **NORMALIZED), LONGER)
    mine = begun.algorithm.state()
    for name in ("online.parameters", "normalizer.mean", "normalizer.scale"):
        assert torch.equal(mine[name], theirs[name]), name
    assert theirs["normalizer.mean"].any()
    assert (begun.trainer.updates, begun.replay.total_transitions, begun.replay.limiter.samples) == (0, 0, 0)
    assert begun.replay.limiter.missing == 64
    assert begun.rng.bit_generator.state == np.random.default_rng(7).bit_generator.state
    # 36 observations of the other run, and 8 of this one.
    insert(begun, 1)
    assert begun.replay.observation_moments() is not None
    assert begun.state(0, {}).values["limiter"]["moments"]["count"] == 32 + 8
    begun.close()


def test_the_scale_of_rewards_comes_along(client: QuantizerClient, tmp_path: Path) -> None:
    run = run_of(client, tmp_path / "other", segments=2, **PPO)
    begun = build(client, tmp_path / "run", config(init_from=str(run), **PPO))
    scale = begun.state(0, {}).values["limiter"]["reward_scale"]
    assert scale["moments"]["count"] > 0
    assert scale["going"] == []
    begun.close()


def test_the_replay_comes_along_and_is_not_counted(client: QuantizerClient, tmp_path: Path) -> None:
    run = run_of(client, tmp_path / "other", segments=10)
    files = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in run.rglob("*") if path.is_file()}
    settings = config(
        init_from=str(run),
        init_replay=True,
        dqn={"hidden_sizes": (8,), "batch_size": 16, "n_step": 5},
        replay={"capacity": 500, "min_size": 64},
    )
    begun = build(client, tmp_path / "run", settings, LONGER)
    assert (begun.replay.transitions, begun.replay.total_transitions) == (80, 0)
    assert not begun.is_collecting
    begun.close()
    again = build(client, tmp_path / "run", settings, LONGER)
    assert again.replay.transitions == 80
    again.close()
    assert {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files} == files


def test_an_interrupted_copy_of_the_replay_begins_again(client: QuantizerClient, tmp_path: Path) -> None:
    run = run_of(client, tmp_path / "other", segments=10)
    settings = config(init_from=str(run), init_replay=True)
    begun = build(client, tmp_path / "run", settings, LONGER)
    begun.close()
    # A kill before the copy has its name.
    (tmp_path / "run" / "replay").rename(tmp_path / "run" / "replay.partial")
    (tmp_path / "run" / "replay.partial" / "rewards.bin").unlink()
    begun = build(client, tmp_path / "run", settings, LONGER)
    assert begun.replay.transitions == 80
    assert not (tmp_path / "run" / "replay.partial").exists()
    begun.close()


def test_a_replay_that_cannot_be_copied_leaves_no_files(client: QuantizerClient, tmp_path: Path) -> None:
    run = run_of(client, tmp_path / "other", segments=0)
    with pytest.raises(UserError, match="init_replay: expected transitions"):
        build(client, tmp_path / "run", config(init_from=str(run), init_replay=True))
    assert not list((tmp_path / "run").glob("replay*"))


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        (
            {"algorithm": "ppo"},
            r"expected algorithm ppo as in this run, got dqn in .*; give --algorithm dqn if .* actions, or begin w",
        ),
        (
            {"dqn": {"hidden_sizes": (16, 4)}},
            r"expected dqn\.hidden_sizes 16,4 as in this run, got 8 in .*; give --dqn\.hidden-sizes 8",
        ),
        (
            {"dqn": {"hidden_sizes": (8,), "dueling": False}},
            r"expected dqn\.dueling False .*, got True in .*; give --dqn\.dueling, or",
        ),
        (NORMALIZED, r"expected normalize_observations True .*, got False in .*; give --no-normalize-observations"),
        ({"network": "own_algorithms:wide_and_shallow"}, r"expected network own_.* got none .*give --network none"),
        ({"sparsity": {"method": "rigl", "period_updates": 100}}, r"expected sparsity\.method rigl .*, got dense in"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_other_networks_are_told_with_the_flag_that_helps(
    changes: dict[str, Any], fact: str, client: QuantizerClient, tmp_path: Path
) -> None:
    run = run_of(client, tmp_path / "other", segments=0)
    with pytest.raises(UserError, match=f"^init_from: {fact}") as raised:
        fit(run, **changes)
    assert "\n" not in str(raised.value)


def test_the_shapes_decide_for_a_checkpoint_that_tells_no_settings(client: QuantizerClient, tmp_path: Path) -> None:
    run = run_of(client, tmp_path / "other", segments=0)
    checkpoints = Checkpoints(run / "checkpoints", keep=3)
    state = checkpoints.load_newest()
    assert state is not None
    values = {name: value for name, value in state.values.items() if name not in ("spec", "network_settings")}
    checkpoints.save(replace(state, values=values))
    fit(run)
    with pytest.raises(UserError, match=r"do not fit .*expected \d+ saved parameters, got \d+; give the settings"):
        fit(run, dqn={"hidden_sizes": (9,)})


@pytest.mark.parametrize(
    ("there", "here", "fact"),
    [
        (
            SPEC,
            replace(SPEC, observations=ArraySpec((6,), "float32")),
            r"observations: expected float32\[6\] .*, got float32\[4\]",
        ),
        (SPEC, replace(SPEC, sizes=(3,)), r"actions: expected 3 choices of the head, got 2"),
        (SPEC, replace(SPEC, frame_stack=2), r"frame_stack: expected 2, got 1"),
        (
            structured.discrete(structured.NUMBERS, structured.IMAGE),
            replace(
                structured.discrete(structured.NUMBERS, structured.IMAGE),
                environment_arguments=EnvironmentArguments({}, (), "channels-first"),
            ),
            r"image_layout: expected images \['channels-first'\], got \['channels-last'\]",
        ),
        (
            structured.discrete(structured.NUMBERS, structured.CATEGORY),
            structured.discrete(structured.NUMBERS, replace(structured.CATEGORY, categories=7)),
            r"observations: expected 'item' as category of 7 categories .*, got .item. as category of 100 ",
        ),
        (
            structured.discrete(structured.NUMBERS),
            structured.discrete(structured.NUMBERS, structured.PLANES),
            r"observations: expected 'planes' as image bool\[5, 5, 2\], got no array 'planes'",
        ),
        (
            structured.discrete(structured.NUMBERS, choices=(2, 3)),
            structured.discrete(structured.NUMBERS, choices=(2, 4)),
            r"actions: expected 4 choices of part 2 of 2, got 3",
        ),
        (
            structured.discrete(choices=(2, 3)),
            structured.discrete(choices=(2, 3, 2)),
            r"actions: expected 3 discrete parts of 2, 3, 2.*, got 2 discrete parts of 2, 3",
        ),
    ],
)
def test_other_spaces_are_told_by_the_array_or_head(
    there: EnvironmentSpec, here: EnvironmentSpec, fact: str, client: QuantizerClient, tmp_path: Path
) -> None:
    run = spec_of_checkpoint(client, tmp_path / "other", there)
    with pytest.raises(UserError, match=f"^init_from: {fact}.* in .*; give an environment with these spaces") as raised:
        fit(run, here)
    assert "\n" not in str(raised.value)


def test_a_policy_that_sees_a_leaf_does_not_begin_one_whose_critics_alone_see_it(
    client: QuantizerClient, tmp_path: Path
) -> None:
    there = structured.discrete(structured.NUMBERS, structured.PLANES)
    here = structured.discrete(structured.NUMBERS, structured.critics(structured.PLANES))
    run = spec_of_checkpoint(client, tmp_path / "other", there, **PPO)
    with pytest.raises(UserError, match=r"expected 'planes' as image .* for critics only, got 'planes' as image"):
        fit(run, here, **PPO)


def test_other_bounds_of_actions_are_refused_with_a_replay_only(client: QuantizerClient, tmp_path: Path) -> None:
    sac = {"algorithm": "sac", "sac": {"hidden_sizes": (8,)}}
    run = spec_of_checkpoint(client, tmp_path / "other", PENDULUM, **sac)
    fit(run, STRONGER, **sac)
    with pytest.raises(UserError, match=r"actions: expected .*4\.0.*, got .*2\.0"):
        fit(run, STRONGER, init_replay=True, **sac)


def test_a_replay_without_a_column_that_the_run_needs_is_refused(client: QuantizerClient, tmp_path: Path) -> None:
    sac = {"algorithm": "sac", "sac": {"hidden_sizes": (8,)}}
    run = spec_of_checkpoint(client, tmp_path / "other", PENDULUM, **sac)
    dynamic = {"enabled": True, "min_size": 100}
    with pytest.raises(UserError, match=r"column greedy_actions.*--no-dynamic-capacity\.enabled, or leave"):
        fit(run, PENDULUM, init_replay=True, dynamic_capacity=dynamic, **sac)
    fit(run, PENDULUM, dynamic_capacity=dynamic, **sac)


def test_a_checkpoint_in_no_run_has_no_replay(client: QuantizerClient, tmp_path: Path) -> None:
    run = run_of(client, tmp_path / "other")
    shutil.copytree(run / "checkpoints" / "000000000032", tmp_path / "alone")
    fit(tmp_path / "alone")
    with pytest.raises(UserError, match=r"alone is in no run.*leave --init-replay out"):
        fit(tmp_path / "alone", init_replay=True)


def test_an_algorithm_without_a_way_to_begin_is_refused(client: QuantizerClient, tmp_path: Path) -> None:
    own: dict[str, Any] = {"algorithm": "own_algorithms:LinearQ"}
    run = spec_of_checkpoint(client, tmp_path / "other", SPEC, **own)
    with pytest.raises(UserError, match=r"own_algorithms:LinearQ cannot begin .*no method begin_from"):
        fit(run, **own)


def test_an_own_on_policy_algorithm_has_no_replay_to_begin_with(client: QuantizerClient, tmp_path: Path) -> None:
    own: dict[str, Any] = {"algorithm": "own_on_policy:Reinforce"}
    run = spec_of_checkpoint(client, tmp_path / "other", SPEC, **own)
    with pytest.raises(UserError, match="init_replay: expected an algorithm with a replay, got own_on_policy"):
        fit(run, init_replay=True, **own)
