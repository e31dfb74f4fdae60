"""Verdicts follow from measured numbers, on invented runs and on real models."""

import math
from dataclasses import replace

import pytest

from magneto.analysis.probe.probe import LayerReading
from magneto.analysis.probe.short_run import FirstStep, ShortRun, StepReading
from magneto.analysis.probe.verdict import judge, kept_share, move_at, percent, rate_of_move


def layer(number: int, **values: float) -> LayerReading:
    sound = {
        "activation_rms": 1.0, "distinct_rms": 0.8, "activation_max": 5.0, "gradient_norm": 1.0,
        "update_ratio": 1e-3, "attention_logit_max": 3.0, "attention_entropy": 2.0,
        "entropy_share": 0.9,
    }  # fmt: skip
    return LayerReading(f"decoder.layers.{number}", **{**sound, **values})


TRIES = [FirstStep(0.0, 8.0, 0.0), FirstStep(1e-4, 7.9, 0.01), FirstStep(1e-2, 7.5, 1.0)]


def run(
    *last: LayerReading, losses: tuple[float, ...] = (8.0, 7.9), rate: float = 1e-3
) -> ShortRun:
    layers = [layer(0), *last]
    return ShortRun(
        [StepReading(n, loss, rate, 1.0, layers) for n, loss in enumerate(losses, 1)], TRIES
    )


def finding(made: ShortRun, name: str) -> tuple[str, float | None, str]:
    (found,) = (f for f in judge(made).findings if f.name == name)
    return found.level, found.value, found.text


def test_a_healthy_run_is_sound() -> None:
    verdict = judge(run(layer(1)))
    assert verdict.level == "sound"
    assert len(verdict.reasons) == len(verdict.findings) == 6


@pytest.mark.parametrize(
    ("distinct", "level"), [(0.5, "sound"), (0.3, "at risk"), (0.1, "likely to fail")]
)
def test_what_tells_positions_apart(distinct: float, level: str) -> None:
    made = run(layer(1), layer(2, distinct_rms=distinct))
    found = finding(made, "kept")
    assert found[:2] == (level, pytest.approx((distinct / 0.8) ** 2))
    assert judge(made).level == level
    # Each of two steps up keeps the square root of the whole.
    if level != "sound":
        assert f"x{distinct / 0.8:.2f} a layer" in found[2]


def test_a_residual_stream_that_grows_is_no_loss() -> None:
    """Token similarity is high, yet nothing is lost: the common part has grown."""
    made = run(layer(1, activation_rms=10.0, distinct_rms=2.0))
    assert finding(made, "kept")[0] == "sound"


def test_the_worst_stack_counts() -> None:
    other = [replace(layer(n), name=f"encoder.layers.{n}") for n in range(2)]
    other[1] = replace(other[1], distinct_rms=0.08)
    assert kept_share([*other, layer(0), layer(1)]) == pytest.approx(0.01)


def test_the_first_real_step() -> None:
    assert finding(run(layer(1), rate=1e-3), "moved")[:2] == ("sound", pytest.approx(0.1))
    assert finding(run(layer(1), rate=9e-3), "moved")[0] == "at risk"
    warming = run(layer(1), rate=0.0)  # every step of it at a rate of 0
    assert finding(warming, "moved")[0] == "sound"


def test_gradients_and_attention() -> None:
    assert finding(run(layer(1, gradient_norm=200.0)), "imbalance")[:2] == ("at risk", 200.0)
    assert finding(run(layer(1, gradient_norm=0.0)), "imbalance")[1] == math.inf
    found = finding(run(layer(1, entropy_share=0.01, attention_logit_max=90.0)), "attention")
    assert found[0] == "at risk" and "decoder.layers.1" in found[2] and "90" in found[2]


def test_range_and_loss() -> None:
    level, value, text = finding(run(layer(1, activation_max=4e4)), "range")
    assert (level, value) == ("at risk", 4e4) and "decoder.layers.1" in text and "fp16" in text
    assert finding(run(layer(1, activation_max=2e38)), "range")[0] == "likely to fail"
    assert finding(run(layer(1), losses=(8.0, 13.0)), "loss")[0] == "likely to fail"
    assert finding(run(layer(1), losses=(8.0, math.nan)), "loss")[0] == "likely to fail"


def test_what_is_not_finite_is_no_crash() -> None:
    broken = run(layer(1, activation_rms=math.nan, distinct_rms=math.nan, activation_max=math.nan))
    assert judge(broken).level == "likely to fail"
    bare = ShortRun([StepReading(1, 1.0, 0.0, 1.0, [LayerReading("layers.0")])], [])
    assert judge(bare).level == "likely to fail"


def test_between_the_tried_rates() -> None:
    assert move_at(TRIES, 1e-3) == pytest.approx(0.1)
    assert rate_of_move(TRIES, 0.1) == pytest.approx(1e-3)
    assert move_at(TRIES, 1e-5) is None and rate_of_move(TRIES, 2.0) is None


def test_percent() -> None:
    assert [percent(s) for s in (0.0013, 0.31, 0.99877, 1.0, 1.2)] == [
        "0.13 %", "31 %", "99.88 %", "100 %", "120 %",
    ]  # fmt: skip
