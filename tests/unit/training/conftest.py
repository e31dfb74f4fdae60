"""One run that has finished, for tests that read it."""

from pathlib import Path

import pytest

from tests.unit.training.toy import run_toy


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 30 steps with dropout and two averages, to be copied by whoever changes it."""
    run = tmp_path_factory.mktemp("finished") / "run"
    settings = {"average_checkpoints": 2, "average_by": "best"}
    run_toy(run, dropout=0.1, ema_decay=0.9, **settings)
    return run
