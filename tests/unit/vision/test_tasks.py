"""Tasks over images: they learn, what does not fit is told, runs outlive what they began with."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from magneto.runs import load_run
from magneto.weights import open_tensors
from tests.unit.vision.small import (
    small_recipe,
    small_task,
    train_small,
)


@pytest.fixture(autouse=True)
def digits() -> None:
    pytest.importorskip("sklearn")


@pytest.mark.parametrize(
    ("name", "steps", "rate"), [("image-modelling", 60, 3e-3), ("image-tokenizer", 80, 2e-3)]
)
def test_it_learns(name: str, steps: int, rate: float, tmp_path: Path) -> None:
    changes = {"training__steps": steps, "model__width": 32, "training__learning_rate": rate}
    found = train_small(name, tmp_path, **changes).metrics
    gained = {key: found[key] - value for key, value in small_task(name).baseline().items()}
    assert gained["loss"] < -0.1
    if name == "image-tokenizer":
        assert gained["cosine"] > 0.1 and found["codebook_use"] > 0.6
        assert 4 < found["codebook_perplexity"] <= 16
    else:
        assert gained["loss"] < -0.3 and gained["masked_accuracy"] > 0


MISFITS: list[tuple[str, dict[str, Any], str]] = [
    ("image-classification", {"model__classes": 9}, "has 10 classes, but model.classes is 9"),
    ("image-tokenizer", {"data__normalisation": "imagenet"}, "normalisation must be half"),
    ("image-tokenizer", {"model__target_width": 7}, "target_width is 7, but .* width of 5"),
    ("image-tokenizer", {"model__channels": 3}, "have 1 channel, but model.channels is 3"),
    ("image-modelling", {"model__codes": None}, "set model.codes"),
    ("image-modelling", {"data__augmentation__erasing": 0.5}, "erasing must be 0"),
    ("image-modelling", {"data__image_tokenizer": "nowhere"}, "no run in nowhere"),
    ("segmentation", {"data__source": "builtin:digits"}, "has no masks"),
    ("segmentation", {}, "has 11 classes, but model.classes is 5"),
]


def test_what_does_not_fit_is_said() -> None:
    for name, changes, words in MISFITS:
        task = small_recipe(name, **changes).build_task()
        with pytest.raises((ValueError, FileNotFoundError), match=words):
            task.prepare()


def test_a_run_is_opened_without_what_it_was_trained_with(
    tokenizer_run: Path, tmp_path: Path
) -> None:
    """Without its teacher; without its tokenizer, which may not be another one meanwhile."""
    shutil.copytree(tokenizer_run, tmp_path / "one")
    train_small("image-tokenizer", tmp_path / "two", training__steps=1, seed=2)
    found = load_run(tmp_path / "one", "auto", {"model.teacher": "clip:nowhere"})
    assert found.recipe.model.target_width == 5
    chosen = {"data__image_tokenizer": str(tmp_path / "one"), "model__codes": None}
    run = tmp_path / "run"
    train_small("image-modelling", run, **chosen, training__steps=2, training__save_every=2)
    chosen["data__image_tokenizer"] = str(tmp_path / "two")
    with pytest.raises(ValueError, match=r"data.digest|trained .* on other data"):
        train_small("image-modelling", run, **chosen, resume=True)
    (tmp_path / "one").rename(tmp_path / "moved")
    chosen["data__image_tokenizer"] = str(tmp_path / "moved")
    assert train_small("image-modelling", run, **chosen, resume=True).step == 8
    (tmp_path / "moved").rename(tmp_path / "gone")
    opened: Any = load_run(run, "auto", {})
    assert opened.model.head.out_features == 16
    names = open_tensors(run / "final")
    assert not any("codebook" in name or "tokenizer" in name for name in names)
