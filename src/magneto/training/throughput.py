"""Throughput in units per second, and model-FLOPs utilisation (MFU)."""

from __future__ import annotations

import math
import time
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from magneto.training.batch import map_tensors
from magneto.training.meta_device import SkippedFills
from magneto.training.peaks import nominal_peaks
from magneto.training.task import Task

# No further product is timed for a device's peak after so long.
PEAK_SECONDS = 1.0


def count_flops(task: Task, batch: Any) -> float:
    """Count the floating-point operations of one forward and backward pass, per unit of the batch.

    They are counted on the meta device: nothing is computed, and nothing takes memory. Recomputed
    activations are counted where the model recomputes them.

    Returns:
        The number; not a number where the model or the loss looks at values, which are not there.
    """
    # Autocast does not reach the meta device. A model that works under autocast only (its residual
    # stream is kept in bf16) works in bf16 throughout.
    for dtype in (torch.float32, torch.bfloat16):
        try:
            return _count(task, batch, dtype)
        except RuntimeError:
            continue
    return math.nan


def _count(task: Task, batch: Any, dtype: torch.dtype) -> float:
    with FlopCounterMode(display=False) as counter:
        loss_on_meta(task, batch, dtype).backward()
    return counter.get_total_flops() / max(task.size(batch), 1)


def loss_on_meta(task: Task, batch: Any, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the loss of a new model on the meta device, which has a graph and no value.

    Raises:
        RuntimeError: Where the model or the loss looks at values.
    """

    def on_meta(tensor: Tensor) -> Tensor:
        return tensor.to("meta", dtype if tensor.is_floating_point() else tensor.dtype)

    with torch.device("meta"), SkippedFills():
        model = task.build_model().to(dtype).train()
    companion = task.companion
    task.companion = None if companion is None else deepcopy(companion).to("meta", dtype)
    try:
        return task.loss(model, map_tensors(batch, on_meta)).total
    finally:
        task.companion = companion


def peak_flops(device: torch.device, precision: str) -> float:
    """Return the device's peak in FLOP/s: from the table, or from a matrix product timed here."""
    if device.type == "cuda":
        peaks = nominal_peaks(torch.cuda.get_device_name(device))
        if peaks is not None:
            return peaks[0 if precision == "bf16" else 1]
    return measured_peak(device, torch.bfloat16 if precision == "bf16" else torch.float32)


def measured_peak(device: torch.device, dtype: torch.dtype, size: int | None = None) -> float:
    """Time up to five square matrix products; return the best rate in FLOP/s.

    Args:
        device: Where.
        dtype: Of the factors, which are random: a GPU multiplies zeros and ones faster.
        size: Rows; by default 1024 on a CPU, and 8192 elsewhere, where less would time the launch.
    """
    there = device.type != "cpu"
    size, products = size or (8192 if there else 1024), 10 if there else 1
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    took: list[float] = []
    product = left
    # The first warms up. A processor without bfloat16 takes seconds for each.
    while len(took) < 5 and sum(took) < PEAK_SECONDS:
        start = time.perf_counter()
        for _ in range(products):
            product = left @ right
        product[0, 0].item()
        took.append(time.perf_counter() - start)
    best = min(took)
    return 2 * size**3 * products / best


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
