"""How fast, and how much of what the machine could do."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from magneto.training.task import Task

# Dense matrix-product peaks by part of the device's name, FLOP/s in (bf16, fp32 with TF32 off).
# The first part that is in the name counts. Source: the vendors' data sheets.
PEAKS = {
    "H200": (989e12, 67e12),
    "H100 PCIe": (756e12, 51e12),
    "H100 NVL": (835e12, 60e12),
    "H100": (989e12, 67e12),
    "A100": (312e12, 19.5e12),
    "L40S": (362e12, 91.6e12),
    "L40": (181e12, 90.5e12),
    "L4": (121e12, 30.3e12),
    "V100": (125e12, 15.7e12),
    "4090": (165e12, 82.6e12),
    "3090": (71e12, 35.6e12),
}


def count_flops(task: Task, model: nn.Module, batch: Any, precision: str) -> float:
    """Count the floating-point operations of one forward and backward pass, per unit of the batch.

    Recomputed activations are counted where the model recomputes them.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.train()
    with FlopCounterMode(display=False) as counter:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            total = task.loss(model, batch).total
        total.backward()
    model.zero_grad(set_to_none=True)
    model.train(was_training)
    return counter.get_total_flops() / max(task.size(batch), 1)


def peak_flops(device: torch.device, precision: str) -> float:
    """Return the device's peak in FLOP/s: from the table, or from a matrix product timed here."""
    if device.type == "cuda":
        peaks = nominal_peaks(torch.cuda.get_device_name(device))
        if peaks is not None:
            return peaks[0 if precision == "bf16" else 1]
    return measured_peak(device, torch.bfloat16 if precision == "bf16" else torch.float32)


def nominal_peaks(name: str) -> tuple[float, float] | None:
    """Return the data sheet's FLOP/s (bf16, fp32) of a device by its name, or None."""
    return next((peaks for part, peaks in PEAKS.items() if part in name), None)


def measured_peak(device: torch.device, dtype: torch.dtype, size: int | None = None) -> float:
    """Time square matrix products; return the best rate in FLOP/s.

    Args:
        device: Where.
        dtype: Of the factors, which are random: a GPU multiplies zeros and ones faster.
        size: Rows; by default 1024 on a CPU, and 8192 elsewhere, where less would time the launch.
    """
    there = device.type != "cpu"
    size, products = size or (8192 if there else 1024), 10 if there else 1
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    product, best = left, float("inf")
    for _ in range(5):  # the first of which warms up
        start = time.perf_counter()
        for _ in range(products):
            product = left @ right
        product[0, 0].item()
        best = min(best, time.perf_counter() - start)
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
