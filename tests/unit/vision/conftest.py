"""Runs that several files of vision's tests look at."""

from pathlib import Path

import pytest

from tests.unit.vision.small import train_small


@pytest.fixture(scope="session")
def tokenizer_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A visual tokenizer after one step; copy it to change it."""
    pytest.importorskip("sklearn")
    run = tmp_path_factory.mktemp("runs") / "tokenizer"
    train_small("image-tokenizer", run, training__steps=1, seed=1)
    return run
