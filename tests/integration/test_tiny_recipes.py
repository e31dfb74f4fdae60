"""Every tiny recipe is small; the first two learn, and the others' tests stand with their tasks."""

from pathlib import Path
from typing import Any

import pytest
import torch

from magneto.progress import ProgressBars
from magneto.recipe import load_recipe, recipe_names
from magneto.training.loop import train
from magneto.training.model import count_flops
from magneto.training.task import place_companion
from tests.system.test_examples import load

TINY = [name for name in recipe_names() if name.endswith("/tiny")]
# Floating-point operations: a minute of two cores at 65e9 a second. Measured: causal-lm 5.3e12,
# translation 3.6e12, masked-lm 1.6e12, image-classification 0.5e12, text-classification 0.3e12.
A_MINUTE_OF_WORK = 8e12


def learn(name: str, directory: Path, **changes: Any) -> tuple[Any, dict[str, float]]:
    """Train a recipe; return its task and what was measured at the end."""
    same = {"training.device": "cpu", "training.tensorboard": False, "training.save_every": 0}
    recipe = load_recipe(name, {**same, "training.evaluate_every": 0, **changes})
    task = recipe.build_task()
    task.prepare()
    report = ProgressBars(quiet=True)
    result = train(task, recipe.training, directory, seed=recipe.seed, report=report)
    return task, result.metrics


@pytest.mark.slow
def test_a_language_model_beats_pairs_of_bytes(tmp_path: Path) -> None:
    """In two thirds of its steps. Measured: 2.52 bits per byte, 1.18 below the pairs."""
    task, scores = learn("causal-lm/tiny", tmp_path, **{"training.steps": 200})
    baselines = load("bits_per_byte").text_baselines(
        task.documents("train"), task.documents("validation")
    )
    assert scores["bits_per_byte"] < baselines["bigram"] - 0.8


@pytest.mark.slow
def test_a_classifier_of_digits_beats_the_commonest(tmp_path: Path) -> None:
    """Measured: 0.953 right of a fifth held out; the commonest digit is a tenth of them."""
    _, scores = learn("image-classification/tiny", tmp_path)
    assert scores["accuracy"] > 0.9


@pytest.mark.slow
def test_segmentation_beats_the_commonest_class(tmp_path: Path) -> None:
    """A class of background alone has a mean IoU of 0.08, single pixels by colour 0.13."""
    task, scores = learn("segmentation/tiny", tmp_path)
    assert scores["mean_iou"] > 2 * task.baseline()["mean_iou"]


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_tiny_recipes_are_a_minute_of_work(name: str) -> None:
    """By counting operations: the same on every machine, however busy it is."""
    recipe = load_recipe(name, {"training.device": "cpu"})
    task = recipe.build_task()
    task.prepare()
    batch = task.train_stream(recipe.training.batch_size, recipe.seed).batch(0)[0]
    place_companion(task, torch.device("cpu"))
    step, _ = count_flops(task, batch)
    assert 0 < step * recipe.training.steps < A_MINUTE_OF_WORK
