"""Verdicts from measured numbers, on invented runs and real models."""

import csv
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from magneto.lab.probe import LayerReading
from magneto.lab.short_run import FirstStep, ShortRun, StepReading
from magneto.lab.verdict import LEVELS, THRESHOLDS, Threshold, judge, kept_share, move_at, percent

CALIBRATION = Path(__file__).parents[3] / "benchmarks" / "results" / "probe-calibration.csv"


def layer(number: int, **values: float) -> LayerReading:
    sound = {
        "activation_rms": 1.0, "distinct_rms": 0.8, "activation_max": 5.0, "gradient_norm": 1.0,
        "update_ratio": 1e-3, "attention_logit_max": 3.0, "attention_entropy": 2.0,
        "entropy_share": 0.9,
    }  # fmt: skip
    return LayerReading(f"decoder.layers.{number}", **{**sound, **values})


TRIES = [
    FirstStep(0.0, 8.0, 0.0),
    FirstStep(1e-4, 7.9, 0.01, 1e-4),
    FirstStep(1e-2, 7.5, 1.0, 1e-2),
    FirstStep(1e-1, 9.0, 2.0, 0.5),
]


def run(
    *last: LayerReading, losses: tuple[float, ...] = (8.0, 7.9), rate: float = 1e-2
) -> ShortRun:
    layers = [layer(0), *last]
    steps = [StepReading(n, loss, rate, 1.0, layers) for n, loss in enumerate(losses, 1)]
    return ShortRun(steps, TRIES, rate, steps)


def finding(made: ShortRun, name: str) -> tuple[str, float | None, str]:
    (found,) = (f for f in judge(made).findings if f.name == name)
    return found.level, found.value, found.text


def test_a_healthy_run_is_sound() -> None:
    verdict = judge(run(layer(1)))
    assert verdict.level == "sound"
    assert len(verdict.reasons) == len(verdict.findings) == 8


@pytest.mark.parametrize(
    ("distinct", "level"), [(0.5, "sound"), (0.3, "not decided"), (0.1, "likely to fail")]
)
def test_what_tells_positions_apart(distinct: float, level: str) -> None:
    made = run(layer(1), layer(2, distinct_rms=distinct))
    found = finding(made, "kept")
    assert found[:2] == (level, pytest.approx((distinct / 0.8) ** 2))
    assert judge(made).level == level
    # Each of two steps up keeps the square root of the whole.
    if level != "sound":
        assert f"x{distinct / 0.8:.2f} per layer" in found[2]


def test_a_residual_stream_that_grows_is_no_loss() -> None:
    """Token similarity is high because the common part has grown, not because variation is lost."""
    made = run(layer(1, activation_rms=10.0, distinct_rms=2.0))
    assert finding(made, "kept")[0] == "sound"


def test_the_worst_stack_counts() -> None:
    other = [replace(layer(n), name=f"encoder.layers.{n}") for n in range(2)]
    other[1] = replace(other[1], distinct_rms=0.08)
    assert kept_share([*other, layer(0), layer(1)]) == pytest.approx(0.01)
    text = finding(run(layer(1), layer(2), *other), "kept")[2]
    assert "at layer 2, the variation" in text
    # One that is not finite is the worst, wherever it stands.
    broken = [replace(part, distinct_rms=math.nan) for part in other]
    assert math.isnan(kept_share([*broken, layer(0), layer(1)]))
    assert math.isnan(kept_share([layer(0), layer(1), *broken]))


def test_the_first_step_is_judged_at_the_peak_rate() -> None:
    """The initial rate of the warm-up does not matter."""
    made = run(layer(1))
    warming = replace(made, steps=[replace(step, learning_rate=0.0) for step in made.steps])
    assert finding(warming, "moved")[:2] == ("sound", 1.0)
    assert finding(warming, "update")[:2] == ("sound", 1e-2)
    assert "a rate of 0.001 changes it by 10 %" in finding(made, "moved")[2]
    assert move_at(TRIES, 1e-3) == pytest.approx(0.1) and move_at(TRIES, 1.0) is None
    shown = [percent(share) for share in (0.00126, 0.5, 0.99876, 0.999999, 1.0, 12.345)]
    assert shown == ["0.13 %", "50 %", "99.88 %", "99.9999 %", "100 %", "1234 %"]
    tries = [*TRIES, FirstStep(1.0, 30.0, 3.0, 5.0)]
    wild = replace(made, first_steps=tries, peak=1.0)
    assert finding(wild, "update")[:2] == ("not decided", 5.0)


def test_steps_at_the_peak_rate() -> None:
    made = run(layer(1))
    assert finding(made, "distinct")[:2] == ("sound", pytest.approx(0.64))
    collapsed = [layer(0), layer(1, distinct_rms=1e-3)]
    steps = [StepReading(n, loss, 0.1, 1.0, collapsed) for n, loss in enumerate((2, 3), 1)]
    found = replace(made, peak_steps=steps)
    assert "Lower the peak rate, or try another placement" in finding(found, "distinct")[2]
    assert finding(found, "distinct")[:2] == ("likely to fail", pytest.approx(1e-6))
    broken = replace(made, peak_steps=[*steps, replace(steps[0], loss=math.nan, layers=[
        layer(0), layer(1, distinct_rms=math.nan)])])  # fmt: skip
    assert finding(broken, "distinct")[:2] == ("likely to fail", 0.0)


def test_gradients_and_attention() -> None:
    other = replace(layer(0), name="encoder.layers.0")  # a stack whose norms are alike
    middle, top = layer(1, gradient_norm=200.0), layer(2, gradient_norm=50.0)
    found = finding(run(middle, top, other), "imbalance")
    assert found[:2] == ("not decided", 200.0) and "(1 in the first layer, 50 in the" in found[2]
    assert finding(run(layer(1, gradient_norm=0.0)), "imbalance")[:2] == ("not decided", math.inf)
    bad = {"entropy_share": 0.01, "attention_logit_max": 90.0, "activation_max": 4e4}
    steps = [run(layer(1)).steps[0], run(layer(1, **bad)).steps[1]]
    level, value, text = finding(replace(run(layer(1)), steps=steps), "attention")
    assert (level, value) == ("not decided", 0.01) and "90" in text
    assert "(decoder.layers.1, step 2)" in text
    level, value, text = finding(replace(run(layer(1)), steps=steps), "range")
    assert value == 4e4 and text.startswith("at step 2, decoder.layers.1: ")


def test_range_and_loss() -> None:
    level, value, text = finding(run(layer(1, activation_max=4e4)), "range")
    assert (level, value) == ("not decided", 4e4) and "decoder.layers.1" in text and "fp16" in text
    assert text.endswith("; it is within the range of bf16 and fp32")
    assert finding(run(layer(1, activation_max=2e38)), "range")[0] == "likely to fail"
    assert finding(run(layer(1), losses=(8.0, 13.0)), "loss")[:2] == ("likely to fail", 13.0)
    assert finding(run(layer(1), losses=(8.0, math.nan)), "loss")[0] == "likely to fail"


def test_what_is_not_finite_is_no_crash() -> None:
    broken = run(layer(1, activation_rms=math.nan, distinct_rms=math.nan, activation_max=math.nan))
    assert judge(broken).level == "likely to fail"
    steps = [StepReading(1, 1.0, 0.0, 1.0, [LayerReading("layers.0")])]
    assert judge(ShortRun(steps, TRIES, 1e-2, steps)).level == "likely to fail"


@pytest.mark.parametrize(
    ("worse", "level"),
    [("above", ["sound", "not decided", "not decided", "likely to fail", "likely to fail"]),
     ("below", ["likely to fail", "likely to fail", "not decided", "not decided", "sound"])],
)  # fmt: skip
def test_both_directions(worse: str, level: list[str]) -> None:
    made = Threshold("above", 2.0, 3.0) if worse == "above" else Threshold("below", 3.0, 2.0)
    assert [made.level(value) for value in (1.0, 2.0, 2.5, 3.0, 4.0)] == level
    assert made.level(math.nan) == "likely to fail", "what is no number is no good sign"
    assert Threshold("above", 2.0, None).level(math.inf) == "not decided"


def test_the_published_tables_are_those_of_the_thresholds() -> None:
    """They count the held-out runs of the calibration by verdict and outcome."""
    rows = list(csv.DictReader(CALIBRATION.read_text("utf-8").splitlines()))[150:]
    counts = Counter()
    for row in rows:
        numbers = {name: float(row[name]) for name in THRESHOLDS if row[name]}
        levels = [THRESHOLDS[name].level(value) for name, value in numbers.items()]
        counts[max(levels, key=LEVELS.index), row["outcome"]] += 1
    outcomes = ("learned", "did not learn", "diverged")
    assert {level: [counts[level, each] for each in outcomes] for level in LEVELS} == {
        "sound": [12, 8, 1], "not decided": [9, 16, 1], "likely to fail": [5, 26, 12],
    }  # fmt: skip
