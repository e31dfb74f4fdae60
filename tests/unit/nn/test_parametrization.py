"""Maximal update parametrisation in training: what it leaves as it is, what it refuses."""

import pytest
import torch
from torch import nn

from magneto.cli import main
from magneto.nn.parametrization import Scale, width_scales
from magneto.progress import SILENT
from magneto.recipe import Recipe, load_recipe
from magneto.training.distributed import one_process
from magneto.training.model import initial_model
from magneto.training.optimizer import build_optimizer

SMALL = {"model.layers": 2, "model.width": 32, "model.heads": 4, "model.ffn_width": 64,
         "training.learning_rate": 0.01, "training.device": "cpu"}  # fmt: skip
MUP = {"model.parametrization": "mup"}


def digits(**changes: object) -> Recipe:
    pytest.importorskip("sklearn")
    return load_recipe("image-classification/tiny", SMALL | changes)


def first_model(recipe: Recipe) -> nn.Module:
    task = recipe.build_task()
    task.prepare(SILENT)
    return initial_model(task, 1, one_process(torch.device("cpu")))


def test_at_its_base_width_it_is_the_standard_one() -> None:
    """Bit for bit, and at the same rates."""
    plain, scaled = digits(), digits(**MUP, **{"model.base_width": 32})
    one, other = first_model(plain), first_model(scaled)
    assert all(map(torch.equal, one.parameters(), other.parameters()))
    rates = [[group["lr"] for group in build_optimizer(model, plain.training).param_groups]
             for model in (one, other)]  # fmt: skip
    assert rates[0] == rates[1]
    assert set(width_scales(other).values()) == {Scale()}


def test_a_wider_model_begins_with_smaller_steps_in_matrices_alone() -> None:
    recipe = digits(**MUP, **{"model.base_width": 8})
    model = first_model(recipe)
    scales = width_scales(model)
    assert {name for name, scale in scales.items() if scale.rate != 1} == {
        name for name, parameter in model.named_parameters()
        if parameter.ndim == 2 and "embedding" not in name
    }  # fmt: skip
    assert {scale.rate for scale in scales.values()} == {1.0, 0.25}
    plain = first_model(digits())
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter * scales[name].initial, model.get_parameter(name)), name


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "base_width"),
        ({"model.base_width": 12}, "base_width (12)"),
        ({"model.base_width": 8, "model.heads": 2}, "heads 2"),
    ],
)
def test_a_base_that_can_not_be_is_refused(changes: dict, said: str, capsys) -> None:
    words = [f"--{name}={value}" for name, value in (SMALL | MUP | changes).items()]
    assert main(["train", "image-classification/tiny", *words, "--dry-run"]) == 2
    assert said in capsys.readouterr().err


def test_a_tied_output_matrix_is_refused(capsys: pytest.CaptureFixture) -> None:
    words = [f"--{name}={value}" for name, value in (MUP | {"model.base_width": 64}).items()]
    assert main(["train", "causal-lm/tiny", *words, "--dry-run"]) == 2
    assert "tie_embeddings" in capsys.readouterr().err


def test_sgd_is_refused() -> None:
    recipe = digits(**MUP, **{"model.base_width": 8, "training.optimizer": "sgd"})
    with pytest.raises(ValueError, match="adamw"):
        build_optimizer(first_model(recipe), recipe.training)
