"""Chooses the precision of an algorithm's products (`learner.precision`) and switches its layers to it."""

import logging
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from math import prod
from operator import attrgetter
from typing import Literal, NamedTuple

import torch

from actorq.config.run_config import RunConfig
from actorq.timing import Clocks, time_calls
from learner_service.kernels.bfloat16 import FEWEST_MULTIPLICATIONS, FEWEST_UNITS
from learner_service.kernels.convolution import Conv2d
from learner_service.kernels.linear import input_gradient, product, weight_gradient
from learner_service.kernels.parameters import FlatParameters
from learner_service.networks import Linear, TwinCritic

_log = logging.getLogger(__name__)

Precision = Literal["fp32", "bf16"]
FP32: Precision = "fp32"
# Instruction sets that multiply bfloat16 numbers.
_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")
# Speedup above which `auto` chooses bf16.
_WORTHWHILE = 1.1
_BUDGET_S = 0.1


class Shape(NamedTuple):
    """A product of [rows, inputs] and [inputs, units]."""

    rows: int
    inputs: int
    units: int

    def __str__(self) -> str:
        return f"a layer of {self.rows} x {self.inputs} x {self.units}"

    @property
    def multiplications(self) -> int:
        """Of a forward pass."""
        return prod(self)

    def pass_of(self, dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
        """A call that computes the three products of a forward and a backward pass."""
        generator = torch.Generator().manual_seed(0)
        tensors = [
            torch.randn(rows, columns, generator=generator).to(device)
            for rows, columns in ((self.rows, self.inputs), (self.units, self.inputs), (self.rows, self.units))
        ]

        def multiply() -> None:
            x, weight, gradient = (each.to(dtype) for each in tensors)
            product(x, weight)
            input_gradient(gradient, weight)
            weight_gradient(gradient, x).float()

        return multiply


class Convolution(NamedTuple):
    """A convolution of a batch of images. Its time is not that of the matrix product with as many multiplications."""

    images: int
    layer: Conv2d

    def __str__(self) -> str:
        kernel, units = "x".join(map(str, self.layer.kernel_size)), self.layer.out_channels
        return f"a convolution of {self.images} images with {units} kernels of {kernel}"

    @property
    def multiplications(self) -> int:
        """Of a forward pass."""
        return self.images * self.layer.multiplications

    def pass_of(self, dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
        """A call that computes a forward pass, and the gradients of images and kernels."""
        layer = deepcopy(self.layer).to(device)
        if dtype == torch.bfloat16:
            layer.use_bfloat16(layer.weight.detach())
        images = torch.rand(self.images, *layer.image, generator=torch.Generator().manual_seed(0)).to(device)
        x = images.contiguous(memory_format=torch.channels_last).requires_grad_()
        return lambda: torch.autograd.grad(layer(x).sum(), (x, layer.weight))


Work = Shape | Convolution


class Seconds(NamedTuple):
    """Seconds of a layer's forward and backward pass in each precision."""

    fp32: float
    bf16: float


def measure(work: Work, device: torch.device) -> Seconds:
    """Time a layer's forward and backward pass in each precision."""

    def finished() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    # With one CPU thread, CPU time excludes other work on the machine.
    one_thread = device.type == "cpu" and torch.get_num_threads() == 1
    calls = {"fp32": work.pass_of(torch.float32, device), "bf16": work.pass_of(torch.bfloat16, device)}
    return Seconds(**time_calls(calls, _BUDGET_S, Clocks() if one_thread else Clocks(cpu=finished)))


def has_instructions(device: torch.device) -> bool:
    """Whether a device has instructions for bfloat16. A processor may have them and still be faster in fp32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    found = torch.cpu.get_capabilities()
    return any(found.get(each) for each in _INSTRUCTIONS)


def use_precision(
    config: RunConfig,
    batch_size: int,
    networks: Sequence[FlatParameters],
    has_bf16: Callable[[torch.device], bool] = has_instructions,
    measure: Callable[[Work, torch.device], Seconds] = measure,
) -> Precision:
    """Switch the convolutions and wide hidden layers of an algorithm's networks to `learner.precision`.

    networks: all trained networks and their targets. Call once, after sparse layers have their masks.

    Returns the chosen precision. One log line gives the reason, unless the setting is fp32.
    """
    asked = config.learner.precision
    # On a GPU, PyTorch's default for convolutions is TF32, which is less precise. This setting affects the whole
    # process.
    torch.backends.cudnn.allow_tf32 = asked != "fp32"
    if asked == "fp32":
        return "fp32"
    layers = [
        (layer, parameters.vector)
        for parameters in networks
        for module in parameters.modules
        for layer in module.modules()
        if isinstance(layer, Linear | TwinCritic | Conv2d)
    ]
    works = [work for layer, _ in layers for work in _works(layer, batch_size)]
    largest = max(works, key=attrgetter("multiplications"), default=None)
    if largest is None or largest.multiplications <= FEWEST_MULTIPLICATIONS:
        _log.info(
            "learner.precision %s: using fp32, because bf16 needs a convolution, or a dense hidden layer with at least "
            "%d inputs and units, and more than %d multiplications per batch",
            *(asked, FEWEST_UNITS, FEWEST_MULTIPLICATIONS),
        )
        return "fp32"
    chosen = _choose(asked, largest, networks[0].vector.device, has_bf16, measure)
    if chosen == "bf16":
        for layer, vector in layers:
            layer.use_bfloat16(vector)
    return chosen


def _works(layer: Linear | TwinCritic | Conv2d, batch_size: int) -> list[Work]:
    """The parts of a layer that may be faster in bfloat16."""
    if isinstance(layer, Conv2d):
        return [Convolution(batch_size, layer)]
    return [Shape(batch_size, *weight.shape[-1:-3:-1]) for weight in layer.wide_weights()]


def _choose(
    asked: str,
    largest: Work,
    device: torch.device,
    has_bf16: Callable[[torch.device], bool],
    measure: Callable[[Work, torch.device], Seconds],
) -> Precision:
    if asked == "auto" and not has_bf16(device):
        _log.info("learner.precision auto: fp32, because the %s has no bf16 instructions", _name(device))
        return "fp32"
    seconds = measure(largest, device)
    if asked == "bf16":
        if seconds.bf16 > seconds.fp32:
            _log.warning(
                "learner.precision bf16: bf16 products take %.1f times as long as fp32 on this %s (%s); set it to fp32 "
                "or auto",
                *(seconds.bf16 / seconds.fp32, _name(device), largest),
            )
        else:
            _log.info("learner.precision bf16: used for the products of %s and of others", largest)
        return "bf16"
    chosen: Precision = "bf16" if seconds.fp32 >= _WORTHWHILE * seconds.bf16 else "fp32"
    _log.info(
        "learner.precision auto: %s; the products of %s take %.3g ms in fp32, %.3g ms in bf16",
        *(chosen, largest, 1e3 * seconds.fp32, 1e3 * seconds.bf16),
    )
    return chosen


def _name(device: torch.device) -> str:
    return "GPU" if device.type == "cuda" else "processor"
