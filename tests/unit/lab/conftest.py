"""A recipe that trains in a moment."""

from collections.abc import Callable
from pathlib import Path

import pytest

from magneto.recipe import Recipe, load_recipe

SMALL = {
    "model.width": 16, "model.layers": 2, "model.heads": 2, "model.ffn_width": 32,
    "data.tokenizer": "bytes", "data.max_length": 24, "training.batch_size": 4, "training.steps": 8,
    "training.log_every": 1, "training.warmup_steps": 2, "training.tensorboard": "false",
    "training.device": "cpu", "training.save_every": 0, "training.evaluate_every": 0,
    "training.evaluate_limit": 1,
}  # fmt: skip


@pytest.fixture
def small(book: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recipe]:
    """Return a function that loads the recipe: `small(model__layers=4)`."""
    monkeypatch.setenv("MAGNETO_CACHE", str(book.parent / "cache"))

    def load(recipe: str = "causal-lm/tiny", **changes: object) -> Recipe:
        named = {key.replace("__", "."): value for key, value in changes.items()}
        values = {**SMALL, "data.source": book, **named}
        return load_recipe(recipe, {key: str(value) for key, value in values.items()})

    return load
