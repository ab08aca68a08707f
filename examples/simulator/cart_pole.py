"""A cart-pole that plays through an ActorQ actor, with only grpcio and the stubs of ActorQ's protos.

python cart_pole.py [ADDRESS [ENVIRONMENTS]]

In a pod, ACTOR_ADDRESS has the address, and ACTOR_CERTIFICATES the folder of the certificates.
"""

import math
import os
import pathlib
import queue
import random
import signal
import struct
import sys
import time

import grpc
from actorq.v1 import external_pb2, external_pb2_grpc, tensor_pb2, trajectory_pb2


class CartPole:
    """The classic task: push a cart so that the pole on it stays upright. 500 steps at most."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin an episode."""
        self.state = [random.uniform(-0.05, 0.05) for _ in range(4)]
        self.steps, self.reward, self.failed, self.cut = 0, 0.0, False, False

    def step(self, action: int) -> None:
        """Push, or begin the next episode if the last one has ended."""
        if self.failed or self.cut:
            return self.reset()
        _, speed, angle, spin = self.state
        sine, cosine = math.sin(angle), math.cos(angle)
        push = ((10.0 if action else -10.0) + 0.05 * spin * spin * sine) / 1.1
        turn = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine * cosine / 1.1))
        pull = push - 0.05 * turn * cosine / 1.1
        changes = (speed, pull, spin, turn)
        self.state = [value + 0.02 * change for value, change in zip(self.state, changes, strict=True)]
        self.steps, self.reward = self.steps + 1, 1.0
        self.failed = abs(self.state[0]) > 2.4 or abs(self.state[2]) > math.radians(12)
        self.cut = self.steps == 500


def connect(address: str) -> grpc.Channel:
    """A connection to the actor, with mutual TLS if there are certificates."""
    if not (folder := os.environ.get("ACTOR_CERTIFICATES")):
        return grpc.insecure_channel(address)
    try:
        files = [pathlib.Path(folder, name).read_bytes() for name in ("ca.crt", "tls.key", "tls.crt")]
    except OSError as error:
        sys.exit(f"error: cannot read {error.filename}")
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(*files))


def play(address: str, count: int) -> None:
    """Play until the run is over."""
    poles, requests = [CartPole() for _ in range(count)], queue.SimpleQueue()
    numbers = tensor_pb2.TensorSpec(dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=[4])
    opening = external_pb2.PlayOpen(protocol=1, environments=count, sizes=[2], max_episode_steps=500)
    opening.reward_threshold = 475.0
    opening.observations.add(kind=trajectory_pb2.LEAF_KIND_NUMBERS, spec=numbers)
    opening.actions.dtype = tensor_pb2.DATA_TYPE_INT64
    requests.put(external_pb2.PlayRequest(open=opening))
    try:
        with connect(address) as channel:
            stub = external_pb2_grpc.ExternalEnvironmentServiceStub(channel)
            for answer in stub.Play(iter(requests.get, None)):
                if answer.WhichOneof("payload") == "action":
                    actions = struct.unpack(f"<{count}q", answer.action.actions.data)
                    for pole, action in zip(poles, actions, strict=True):
                        pole.step(action)
                requests.put(external_pb2.PlayRequest(step=message(poles)))
    finally:
        requests.put(None)


def message(poles: list[CartPole]) -> external_pb2.PlayStep:
    """The step of all cart-poles."""
    data = b"".join(struct.pack("<4f", *pole.state) for pole in poles)
    step = external_pb2.PlayStep(rewards=[pole.reward for pole in poles])
    step.observations.add(dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=[len(poles), 4], data=data)
    step.terminated.extend(pole.failed for pole in poles)
    step.truncated.extend(pole.cut for pole in poles)
    return step


if __name__ == "__main__":
    # Without a handler, the first process of a container would ignore SIGTERM.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    given = (
        sys.argv[1:] + [os.environ.get("ACTOR_ADDRESS", "127.0.0.1:50053"), "8"][len(sys.argv) - 1 :]
    )
    while True:
        try:
            play(given[0], int(given[1]))
            print("the run is over")
            break
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                sys.exit(f"error: {error.details()}")
            time.sleep(0.5)
