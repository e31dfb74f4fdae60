"""Throughput in units per second, and model-FLOPs utilisation (MFU)."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from magneto.data.batch import map_tensors
from magneto.training.peaks import nominal_peaks
from magneto.training.step import units_of
from magneto.training.task import Task

# Rows of the matrices by which a device's peak is first timed, and the seconds that are enough.
SMALLEST = 256
LONG_ENOUGH = 0.02


def count_flops(task: Task, batch: Any, precision: str = "fp32") -> tuple[float, int]:
    """Count the floating-point operations of one forward and backward pass.

    Tensors have only shapes: nothing is computed, and nothing takes memory. Recomputed activations
    are counted where the model recomputes them.

    Args:
        task: Prepared; its companion, if it has one, on the CPU.
        batch: On the CPU.
        precision: "bf16" or "fp32", as in training.

    Returns:
        The number, and the units of the batch; not a number, and 1, where the model or the loss
        looks at values, which are not there.
    """
    fake, counter = FakeTensorMode(allow_non_fake_inputs=True), FlopCounterMode(display=False)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
    try:
        # Of fused attention torch does not count the products on every device.
        with fake, counter, sdpa_kernel(SDPBackend.MATH):
            model = task.build_model().train()
            with autocast:
                loss = task.loss(model, map_tensors(batch, fake.from_tensor))
            loss.total.backward()
    except RuntimeError:
        return math.nan, 1
    return counter.get_total_flops(), max(units_of(loss, batch), 1)


def peak_flops(device: torch.device, precision: str) -> float:
    """Return the device's peak in FLOP/s: from the table, or from a matrix product timed here."""
    if device.type == "cuda":
        peaks = nominal_peaks(torch.cuda.get_device_name(device))
        if peaks is not None:
            return peaks[0 if precision == "bf16" else 1]
    return measured_peak(device, torch.bfloat16 if precision == "bf16" else torch.float32)


def measured_peak(device: torch.device, dtype: torch.dtype, size: int | None = None) -> float:
    """Time square matrix products; return the best rate in FLOP/s.

    Args:
        device: Where.
        dtype: Of the factors, which are random: a GPU multiplies zeros and ones faster.
        size: Rows; by default as many as take a while, up to 1024 on a CPU, and 8192 elsewhere,
            where less would time the launch. A processor that has no bfloat16 is done with 256.
    """
    there = device.type != "cpu"
    largest, products = size or (8192 if there else 1024), 10 if there else 1
    size = size or SMALLEST
    seconds = product_seconds(device, dtype, size, products)
    while size < largest and seconds < LONG_ENOUGH:
        size *= 2
        seconds = product_seconds(device, dtype, size, products)
    return 2 * size**3 * products / seconds


def product_seconds(device: torch.device, dtype: torch.dtype, size: int, products: int) -> float:
    """Return how long some products of random matrices take, the least of five times."""
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best, product = float("inf"), left
    for _ in range(5):  # the first of which warms up
        start = time.perf_counter()
        for _ in range(products):
            product = left @ right
        product[0, 0].item()
        best = min(best, time.perf_counter() - start)
    return best


class Throughput:
    """Counts units between two readings, and the seconds that training itself took."""

    def __init__(self, flops_per_unit: float, peak: float) -> None:
        self.flops_per_unit = flops_per_unit
        self.peak = peak
        self.units = 0
        self.start = time.perf_counter()
        self.paused = 0.0

    def add(self, units: int) -> None:
        """Count units of this rank."""
        self.units += units

    def pause(self, seconds: float) -> None:
        """Leave out seconds spent on evaluation or saving."""
        self.paused += seconds

    def read(self, world_size: int) -> tuple[float, float]:
        """Return (units per second over all ranks, model-FLOPs utilisation), and start again."""
        now = time.perf_counter()
        seconds = max(now - self.start - self.paused, 1e-9)
        rate = self.units / seconds
        self.units, self.start, self.paused = 0, now, 0.0
        return rate * world_size, rate * self.flops_per_unit / self.peak
