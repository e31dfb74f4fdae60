"""Counting operations and time."""

import time

import pytest
import torch

from magneto.training.throughput import Throughput, count_flops, measured_peak
from tests.training.toy import Toy


def test_flops_of_a_step_by_hand() -> None:
    """2 per weight and row forward, 4 backward; the first layer's input needs no gradient."""
    task = Toy()
    model = task.build_model()
    batch = task.train_stream(8, 0).next(1, [0])[0]
    products = [4 * 16, 16 * 16, 16 * 16, 16 * 16, 16 * 16, 16 * 1]
    assert count_flops(task, model, batch, "fp32") == 6 * sum(products) - 2 * 4 * 16
    assert all(parameter.grad is None for parameter in model.parameters()) and model.training


def test_rate_leaves_out_pauses() -> None:
    meter = Throughput(flops_per_unit=10.0, peak=1000.0)
    time.sleep(0.2)
    meter.pause(0.1)
    meter.add(50)
    rate, utilisation = meter.read(world_size=2)
    assert 500 < rate <= 1000
    assert utilisation == pytest.approx(rate / 2 * 10 / 1000)
    assert meter.read(2)[0] == 0


def test_a_measured_peak_is_believable() -> None:
    assert 1e8 < measured_peak(torch.device("cpu"), torch.float32, 256) < 1e14
