"""Counting operations and time."""

import math
import time
from typing import Any

import pytest
import torch

from magneto import Encoder, TransformerConfig
from magneto.training.task import Loss
from magneto.training.throughput import Throughput, count_flops, measured_peak
from tests.training.toy import Toy, ToyData


def test_flops_of_a_step_by_hand() -> None:
    """2 per weight and row forward, 4 backward; the first layer's input needs no gradient."""
    task = Toy()
    batch = task.train_stream(8, 0).next(1, [0])[0]
    products = [4 * 16, 16 * 16, 16 * 16, 16 * 16, 16 * 16, 16 * 1]
    assert count_flops(task, batch) == 6 * sum(products) - 2 * 4 * 16


def test_flops_are_counted_without_a_run() -> None:
    """Attention's own products are counted, and a model of 3 TB takes no memory."""
    width, length = 512 * 256, 64
    config = TransformerConfig(width=width, layers=4, heads=256, ffn_width=4 * width)

    class Stack(Toy):
        def build_model(self) -> torch.nn.Module:
            return Encoder(config)

        def loss(self, model: torch.nn.Module, batch: Any) -> Loss:
            return Loss(model(batch[0]).sum(), torch.ones(()))

    flops = count_flops(Stack(), (torch.empty(1, 1, 1).expand(1, length, width),))
    weights, attention = 12 * width**2, 2 * length * width
    assert flops == 4 * 6 * length * (weights + attention)


def test_a_residual_stream_in_bf16_is_counted_too() -> None:
    task = Toy()
    config = {"width": 8, "layers": 1, "heads": 1, "ffn_width": 8}

    def count(dtype: str) -> float:
        task.build_model = lambda: Encoder(TransformerConfig(**config, residual_dtype=dtype))
        task.loss = lambda model, batch: Loss(model(batch[0]).sum(), torch.ones(()))
        return count_flops(task, (torch.ones(1, 3, 8),))

    assert count("bfloat16") == count("input") > 0


def test_a_loss_that_reads_values_is_not_counted() -> None:
    task = Toy(ToyData(explode_at=0.1))
    assert math.isnan(count_flops(task, task.train_stream(8, 0).next(1, [0])[0]))


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
