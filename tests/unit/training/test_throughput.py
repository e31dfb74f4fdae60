"""Counting operations and time, by a clock that the test sets."""

import math
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from magneto import Encoder, TransformerConfig
from magneto.training import logging as resources
from magneto.training.logging import Throughput, measured_peak, nominal_peaks
from magneto.training.model import count_flops
from magneto.training.task import Loss
from tests.unit.training.toy import Toy, ToyData


def test_flops_of_a_step_by_hand() -> None:
    """2 per weight and row forward, 4 backward; the first layer's input needs no gradient."""
    task = Toy()
    batch = task.train_stream(8, 0).batch(0)[0]
    products = [4 * 16, 16 * 16, 16 * 16, 16 * 16, 16 * 16, 16 * 1]
    assert count_flops(task, batch) == (8 * (6 * sum(products) - 2 * 4 * 16), 8)


def test_flops_are_counted_without_a_run() -> None:
    """Attention's own products are counted, and a model of 3 TB takes no memory."""
    width, length = 512 * 256, 64
    config = TransformerConfig(width=width, layers=4, heads=256, ffn_width=4 * width)

    class Stack(Toy):
        def build_model(self) -> torch.nn.Module:
            return Encoder(config)

        def loss(self, model: torch.nn.Module, batch: Any) -> Loss:
            return Loss(model(batch[0]).sum(), torch.ones(()))

    flops, units = count_flops(Stack(), (torch.empty(1, 1, 1).expand(1, length, width),))
    weights, attention = 12 * width**2, 2 * length * width
    assert flops == 4 * 6 * length * (weights + attention) and units == 1


def test_a_residual_stream_in_bf16_is_counted_too() -> None:
    task = Toy()
    config = {"width": 8, "layers": 1, "heads": 1, "ffn_width": 8}

    def count(dtype: str) -> float:
        task.build_model = lambda: Encoder(TransformerConfig(**config, residual_dtype=dtype))
        task.loss = lambda model, batch: Loss(model(batch[0]).sum(), torch.ones(()))
        return count_flops(task, (torch.ones(1, 3, 8),))[0]

    assert count("bfloat16") == count("input") > 0


def test_a_loss_that_reads_values_is_not_counted() -> None:
    task = Toy(ToyData(explode_at=0.1))
    assert math.isnan(count_flops(task, task.train_stream(8, 0).batch(0)[0])[0])


def set_clock(monkeypatch: pytest.MonkeyPatch, seconds: Iterable[float]) -> None:
    """Let the clock say these seconds, one at each reading."""
    readings = iter(seconds)
    clock = SimpleNamespace(perf_counter=lambda: next(readings))
    monkeypatch.setattr(resources, "time", clock)


def test_rate_leaves_out_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, [100.0, 104.0, 106.0, 107.0])
    meter = Throughput(flops_per_unit=10.0, peak=1000.0)
    meter.pause(1.5)
    meter.add(30)
    meter.add(20)
    rate, utilisation = meter.read(world_size=2)
    assert rate == 2 * 50 / 2.5
    assert utilisation == pytest.approx(50 / 2.5 * 10 / 1000)
    assert meter.read(2) == (0, 0)
    meter.add(3)
    assert meter.read(1)[0] == 3, "the pause counts once"


def test_a_measured_peak_is_believable() -> None:
    assert 1e8 < measured_peak(torch.device("cpu"), torch.float32, 256) < 1e14


@pytest.mark.parametrize(
    ("name", "bf16"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA L40", 181e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
    ],
)
def test_a_device_has_the_peak_of_its_own_data_sheet(name: str, bf16: float) -> None:
    found = nominal_peaks(name)
    assert found is not None and found[0] == bf16


def test_an_unknown_device_has_no_nominal_peak() -> None:
    assert nominal_peaks("Somebody's GPU") is None


def test_the_measured_peak_is_the_best_of_five_products(monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, [0, 4, 10, 13, 20, 20.5, 30, 38, 40, 44])
    assert measured_peak(torch.device("cpu"), torch.float32, 8) == 2 * 8**3 / 0.5


def test_products_grow_until_they_take_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [time for round in range(5) for time in (round, round + 1 / 128)]
    set_clock(monkeypatch, [*times, *(4 * time for time in times)])
    assert measured_peak(torch.device("cpu"), torch.float32) == 2 * 512**3 * 32
