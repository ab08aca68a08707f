"""A CNN that plays Pong from frames, cloned from a controller that reads the game's memory into the Nature CNN."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.harness import optional_module
from benchmarks.policies import FRAMES, PolicyNetwork, checkpoint_of, environment_spec, nature_cnn
from benchmarks.policy.trained.task import INSTALL, Act, Progress, TrainedPolicy

# Memory addresses of the ball's x and y and the right paddle's y (Anand et al., arXiv 1906.08226, table 1).
_BALL_X, _BALL_Y, _PADDLE_Y = 49, 54, 51
# No operation, up and down, as numbers of the game's six actions.
_ACTIONS = (0, 2, 3)
_STAY, _UP, _DOWN = range(3)
# Offset of the ball's y from the paddle's y at a hit in the middle, and its tolerance; found by experiment.
_OFFSET, _DEAD_ZONE = 8, 9
_SKIP = 4
# The 160 rows between the walls, and the gray value of the empty field.
_FIELD, _BACKGROUND = slice(34, 194), 87
Frames = NDArray[np.uint8]


class Pong:
    """One game with frame skip 4, observed as four gray frames of 84 x 84."""

    def __init__(self, seed: int) -> None:
        ale_py = optional_module("ale_py", INSTALL)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._ale = ale_py.ALEInterface()
        self._ale.setInt("random_seed", seed)
        self._ale.setFloat("repeat_action_probability", 0.0)
        self._ale.loadROM(ale_py.roms.get_rom_path("pong"))
        self._actions = [self._ale.getMinimalActionSet()[index] for index in _ACTIONS]
        self._ball_y = 0
        # Games with the same start stay equal, so each begins with a random number of idle steps.
        for _ in range(np.random.default_rng(seed).integers(1, 31)):
            self._ale.act(self._actions[_STAY])
        self.frames = np.repeat(self._frame()[None], FRAMES[0], axis=0)

    @property
    def over(self) -> bool:
        """Whether one side has 21 points."""
        return bool(self._ale.game_over())

    def step(self, action: int) -> float:
        """Hold an action for four frames. Returns the points won minus the points lost."""
        reward = sum(self._ale.act(self._actions[action]) for _ in range(_SKIP))
        self.frames = np.concatenate([self.frames[1:], self._frame()[None]])
        return float(reward)

    def controlled(self) -> int:
        """The controller's action: follow the ball's position at the next step."""
        memory = self._ale.getRAM()
        ball_x, ball_y, paddle_y = (int(memory[place]) for place in (_BALL_X, _BALL_Y, _PADDLE_Y))
        moved = ball_y - self._ball_y if ball_y and self._ball_y else 0
        self._ball_y = ball_y
        distance = ball_y + moved - paddle_y - _OFFSET
        if not ball_x or not ball_y or abs(distance) < _DEAD_ZONE:
            return _STAY
        return _DOWN if distance > 0 else _UP

    def _frame(self) -> Frames:
        return shrink(self._ale.getScreenGrayscale()[_FIELD])


def shrink(field: Frames) -> Frames:
    """The objects on the background, at half size: uint8[160, 160] -> uint8[84, 84], with an empty margin of 2.

    With the original gray values, a network of this size needs far more data to find the ball.
    """
    wide = field.astype(np.int16)
    means = (wide[::2, ::2] + wide[1::2, ::2] + wide[::2, 1::2] + wide[1::2, 1::2]) // 4
    return np.pad(np.clip(4 * (means - _BACKGROUND), 0, 255).astype(np.uint8), 2)


class PongCNN:
    """The Nature CNN, cloned from the controller's actions. Some actions of the cloned games are random."""

    name = "Pong CNN"
    trained_by = "cloned (cross-entropy) from a controller that reads the game's memory, Nature CNN"
    spec = environment_spec(FRAMES, "uint8", len(_ACTIONS), True)
    episodes = 2

    def __init__(self, seed: int = 0, steps: int = 12_000, updates: int = 1_500) -> None:
        self._seed, self._steps, self._updates = seed, steps, updates

    def train(self, progress: Progress) -> TrainedPolicy:
        """Record the controller, clone it, and collect the held-out frames with the clone."""
        rng = np.random.default_rng(self._seed)
        frames, actions = _demonstrations(self._steps, rng)
        progress(f"{self.name}: {len(frames)} frames, counts of actions {np.bincount(actions).tolist()}")
        torch.manual_seed(self._seed)
        network = nature_cnn(len(_ACTIONS))
        optimizer = torch.optim.Adam(network.parameters(), lr=5e-4)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self._updates)
        correct = 0.0
        for update in range(1, self._updates + 1):
            rows = rng.integers(0, len(frames), 64)
            values = network(torch.from_numpy(frames[rows]))
            targets = torch.from_numpy(actions[rows])
            loss = nn.functional.cross_entropy(values, targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            correct += float((values.argmax(dim=1) == targets).float().mean())
            if update % 250 == 0:
                progress(f"{self.name}: {update} of {self._updates} updates, {correct / 250:.3f} like the controller")
                correct = 0.0
        calibration, held_out = frames[rng.permutation(len(frames))[:256]], _visited(network, 1000, self._seed + 100)
        graph, checkpoint = checkpoint_of(PolicyNetwork("cnn", network, self.spec, calibration))
        return TrainedPolicy(graph, checkpoint, held_out)

    def returns(self, act: Act) -> list[float]:
        """Points won minus points lost, for whole games."""
        games = [Pong(200 + index) for index in range(self.episodes)]
        totals = np.zeros(len(games))
        for _ in range(6_000):
            actions = np.asarray(act(np.stack([game.frames for game in games]))).argmax(axis=1)
            for index, game in enumerate(games):
                totals[index] += 0.0 if game.over else game.step(int(actions[index]))
            if all(game.over for game in games):
                break
        return totals.tolist()


def _demonstrations(steps: int, rng: np.random.Generator) -> tuple[Frames, NDArray[np.int64]]:
    """Frames uint8[steps, 4, 84, 84] and the controller's actions. A tenth of the executed actions is random."""
    frames = np.empty((steps, *FRAMES), np.uint8)
    actions = np.empty(steps, np.int64)
    game = Pong(int(rng.integers(1, 2**31)))
    for step in range(steps):
        if game.over:
            game = Pong(int(rng.integers(1, 2**31)))
        frames[step], actions[step] = game.frames, game.controlled()
        game.step(int(rng.integers(len(_ACTIONS))) if rng.random() < 0.1 else int(actions[step]))
    return frames, actions


def _visited(network: nn.Module, steps: int, seed: int) -> Frames:
    """The frames that the network sees when it plays."""
    game, seen = Pong(seed), []
    for _ in range(steps):
        if game.over:
            game = Pong(seed + 1)
        seen.append(game.frames)
        with torch.inference_mode():
            values: Any = network(torch.from_numpy(game.frames[None]))
        game.step(int(values.argmax()))
    return np.stack(seen)
