"""Short runs equal the first steps of training; trials of a recipe, and of several widths."""

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from magneto.lab import coordinates, diagnosis
from magneto.lab.coordinates import (
    FLAT,
    HEAD,
    Coordinate,
    draw_coordinates,
    measure_coordinates,
    outputs,
)
from magneto.lab.diagnosis import run_trial
from magneto.lab.short_run import ShortRun, first_piece, initial_model, short_run, steps_at_peak
from magneto.lab.update import growth, measure_growth, measured_shape
from magneto.progress import ProgressBars
from magneto.recipe import Recipe, load_recipe
from magneto.theory.placement import Stack
from magneto.training.logging import read_metrics
from magneto.training.loop import train
from magneto.training.task import Loss

Small = Callable[..., Recipe]


def run_of(made: Recipe, steps: int) -> ShortRun:
    task = made.build_task()
    task.prepare()
    model = initial_model(task, made.training, made.seed)
    return short_run(task, model, made.training, seed=made.seed, steps=steps)


def test_it_takes_the_steps_that_training_takes(small: Small, tmp_path: Path) -> None:
    """Dropout, the number of micro-batches, and a schedule in epochs are the same."""
    extra = {"model__dropout": 0.2, "training__gradient_accumulation_steps": 2}
    made = small(training__epochs=0.002, training__warmup_ratio=0.5, **extra)
    train(
        made.build_task(), made.training, tmp_path, seed=made.seed, report=ProgressBars(quiet=True)
    )
    trained = [row for row in read_metrics(tmp_path) if "loss" in row][:3]
    short = run_of(made, 3).steps
    assert [step.loss for step in short] == [row["loss"] for row in trained]
    assert [step.gradient_norm for step in short] == [row["gradient_norm"] for row in trained]
    assert [step.learning_rate for step in short] == [row["learning_rate"] for row in trained]


def test_first_steps(small: Small) -> None:
    run = run_of(small(model__dropout=0.2), 1)
    start, *tries = run.first_steps
    assert (start.learning_rate, start.moved) == (0.0, 0.0)
    assert len({tried.loss for tried in run.first_steps}) > len(tries) / 2
    rates = [tried.learning_rate for tried in tries]
    assert rates == sorted(rates) and 3e-3 in rates, "the peak is among them"
    moved = [tried.moved for tried in tries if tried.learning_rate < 1e-4]
    assert all(a < b for a, b in pairwise(moved))
    assert moved[1] / moved[0] == pytest.approx(10**0.5, rel=0.05), "a small step is linear"


def test_a_first_batch_without_targets_has_no_loss(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = small()
    task = made.build_task()
    task.prepare()
    real = task.loss

    def untaught(*given: Any) -> Loss:
        found = real(*given)
        return Loss(found.total * 0, found.count * 0)

    begun_and_ended: list[Any] = []
    for name in ("begin_training", "end_step"):
        monkeypatch.setattr(task, name, lambda *given: begun_and_ended.append(given))
    monkeypatch.setattr(task, "loss", untaught)
    model = initial_model(task, made.training, made.seed)
    run = short_run(task, model, made.training, seed=made.seed, steps=1)
    assert {tried.loss for tried in run.first_steps} == {0.0}
    assert [given[0] is model for given in begun_and_ended] == [True] * 2, "as training calls them"


def test_the_first_try_at_the_peak_updates_weights_as_the_first_step_there(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps at the peak have neither warm-up nor decay, but the task's factors of the rate."""
    made = small(training__warmup_steps=0, training__steps=3)
    task = made.build_task()
    monkeypatch.setattr(type(task), "rate_multipliers", lambda task, model: {
        name: 0.25 for name, _ in model.named_parameters()})  # fmt: skip
    task.prepare()
    run = run_of(made, 1)
    steps = steps_at_peak(task, made.training, seed=made.seed, steps=4)
    assert [step.learning_rate for step in steps] == [made.training.learning_rate] * 4
    tried = run.at_rate(run.peak)
    assert run.peak == made.training.learning_rate
    ratios = [layer.update_ratio or 0.0 for layer in steps[0].layers]
    assert tried.update == pytest.approx(sum(ratios) / len(ratios)) and tried.update > 0
    assert [step.loss for step in steps[:1]] == [step.loss for step in run.steps]


def test_a_run_that_breaks_ends_there_and_names_the_layer(small: Small) -> None:
    made = small(training__learning_rate=1e30, training__warmup_steps=0)
    run = run_of(made, 6)
    assert len(run.steps) < 6
    found = run.troubles()["bf16"]
    assert found is not None and found[1].layer.startswith("decoder.layers.")


def test_it_stops_when_the_time_is_over_and_says_what_is_missing(small: Small) -> None:
    found = run_trial(small(training__steps=10**6), 1e-9)
    assert found.status == "has not learned yet"
    assert found.steps <= 3 and found.of_steps == 10**6, "no time: hardly a step"
    assert found.baseline is not None and found.score is not None and found.threshold is not None
    task = small().build_task()
    task.prepare()
    whole, first = (task.baseline(limit)[found.metric] for limit in (None, 1))
    assert found.baseline == first != whole, "of the recipe's number of batches"
    assert found.score > found.threshold and "from the trivial baseline" in found.reason
    assert f"trivial baseline {found.baseline:.4g}" in found.text and 0 <= found.seconds < 60
    wild = small(training__steps=10**6, training__learning_rate=3.0, training__warmup_steps=0,
                 training__log_every=10)  # fmt: skip
    found = run_trial(wild, 1e-9)
    assert found.status == "has not learned yet" and found.steps < 10, "too few to diverge"


def test_a_recipe_that_ends_in_time_is_evaluated_once(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "run_evaluation", lambda state: pytest.fail("evaluated twice"))
    assert run_trial(small(training__steps=1), 0).steps == 1


def test_a_recipe_that_ends_before_is_judged_at_its_end(small: Small) -> None:
    made = small(
        training__steps=40, training__learning_rate=1e-2, training__batch_size=16, model__width=32
    )
    found = run_trial(made, 1e6)
    assert (found.status, found.steps, found.reason) == ("learned", 40, "")
    assert found.score is not None and found.threshold is not None
    assert found.score < found.threshold


def test_the_recipes_seed_determines_weights_and_batches(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "PEAK_STEPS", 1)
    one, other = (small(seed=seed, training__steps=1) for seed in (1, 2))
    assert run_trial(one, 0).score != run_trial(other, 0).score
    found, task = diagnosis.diagnose(other, steps=1, seeds=0).run, other.build_task()
    task.prepare()
    peak = steps_at_peak(task, other.training, seed=2, steps=1)
    assert (found.steps, found.peak_steps) == (run_of(other, 1).steps, peak)
    assert found.steps != run_of(one, 1).steps


@pytest.mark.parametrize(
    ("recipe", "stack"), [("causal-lm/tiny", "decoder"), ("masked-lm/tiny", "encoder")]
)
def test_growth_is_that_of_the_models_kind_of_stack(
    small: Small, recipe: str, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "PEAK_STEPS", 1)
    made = small(recipe)
    shape, depths = measured_shape(made.model), (1, 2)
    expected = growth(measure_growth(shape, depths=depths, seeds=range(2), stack=stack))
    assert diagnosis.diagnose(made, steps=1, seeds=2).growth == expected


def test_what_diverges_says_so(small: Small) -> None:
    made = small(training__learning_rate=1e30, training__warmup_steps=0, training__epochs=1)
    found = run_trial(made, 1e6)
    assert found.status == "diverged" and found.text.startswith("diverged within ")
    assert found.steps < 1000 < found.of_steps
    assert found.reason in found.text


def test_asked_to_stop_it_gives_no_verdict(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    signal = diagnosis.Stop("interrupted", "asked to stop by a signal")
    monkeypatch.setattr(diagnosis, "Stop", lambda *_: signal)
    with pytest.raises(KeyboardInterrupt):
        run_trial(small(), 1e-9)


WIDTHS = (16, 64, 128)
SIZES = {
    "model.width": 16, "model.heads": 2, "model.ffn_width": 32, "model.layers": 2,
    "training.learning_rate": 0.002, "training.batch_size": 16, "training.device": "cpu",
}  # fmt: skip


def test_a_power_of_the_width_is_recovered() -> None:
    found = Coordinate("", {}, {width: 3 * width**0.7 for width in WIDTHS})
    assert found.exponent == pytest.approx(0.7)
    for wrong in (math.inf, 0.0):
        assert math.isnan(Coordinate("", {}, {16: 1.0, 32: wrong}).exponent)


def test_changes_grow_with_the_width_but_not_by_maximal_update_parametrisation() -> None:
    pytest.importorskip("sklearn")
    mup = {"model.parametrization": "mup", "model.base_width": 16}
    plain, scaled = (
        measure_coordinates(load_recipe("image-classification/tiny", SIZES | more), WIDTHS, steps=2)
        for more in ({}, mup)
    )
    names = ["encoder.layers.0", "encoder.layers.1", "encoder", HEAD]
    assert [each.name for each in plain] == [each.name for each in scaled] == names
    # The final norm keeps an RMS of 1; the change is of values, not of this RMS.
    assert plain[2].initial[16] == pytest.approx(1, abs=0.01) and plain[2].change[16] > 0.1
    for one, other in zip(plain[:2], scaled[:2], strict=True):
        assert one.exponent > 0.3 and abs(other.exponent) < FLAT
        assert one.initial[16] == other.initial[16] and one.change[16] == other.change[16]
    later = load_recipe("image-classification/tiny", SIZES | {"training.warmup_steps": 300})
    again = measure_coordinates(later, WIDTHS[:1], steps=2)
    assert again[0].change[16] == plain[0].change[16], "steps are at the peak rate"


def test_outputs_are_without_dropout_and_include_a_head_that_the_loss_does_not_call(
    small: Small,
) -> None:
    accumulated = {"training__batch_size": 16, "training__gradient_accumulation_steps": 2}
    made = small(model__dropout=0.5, **accumulated)
    task = made.build_task()
    task.prepare()
    model = initial_model(task, made.training, made.seed).train()
    piece = first_piece(task, made.training, made.seed)
    first, second = (outputs(task, model, piece) for _ in range(2))
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert model.training and torch.equal(first[HEAD], model.head(first["decoder"]))
    assert len(first["decoder"]) == 2, "a quarter of a micro-batch of eight"


def test_changes_are_drawn_over_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Coordinate(name, {}, {16: 1.0, 64: end}) for name, end in (("0", 2.0), (HEAD, 5.0))]
    drawn: list[Any] = []
    monkeypatch.setattr(coordinates, "as_svg", lambda figure: drawn.append(figure) or "an SVG")
    assert draw_coordinates(found, 7) == b"an SVG"
    [axes] = drawn[0].axes
    lines = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
    assert lines == [([16, 64], [1.0, 2.0]), ([16, 64], [1.0, 5.0])]
    assert [(text.get_text(), text.xy) for text in axes.texts] == [
        ("0", (64, 2.0)),
        (HEAD, (64, 5.0)),
    ]
    assert axes.get_xscale() == axes.get_yscale() == "log" and "after 7 steps" in axes.get_ylabel()
