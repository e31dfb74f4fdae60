"""Trained runs that several files of vision's tests look at; copy one to change it."""

from pathlib import Path

import pytest

from tests.unit.vision.small import train_small


@pytest.fixture(scope="session")
def tokenizer_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A visual tokenizer that has learnt."""
    pytest.importorskip("sklearn")
    run = tmp_path_factory.mktemp("runs") / "tokenizer"
    train_small("image-tokenizer", run, training__steps=40, training__learning_rate=6e-3,
                training__batch_size=16, training__evaluate_limit=None)  # fmt: skip
    return run


@pytest.fixture(scope="session")
def modelling_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A masked image model, of codes of patches, that has learnt."""
    pytest.importorskip("sklearn")
    run = tmp_path_factory.mktemp("runs") / "modelling"
    train_small("image-modelling", run, training__steps=30, training__learning_rate=1e-2,
                training__evaluate_limit=None)  # fmt: skip
    return run
