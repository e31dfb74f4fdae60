"""A warning about a pre-trained encoder that is at its unigram baseline."""

import json
from pathlib import Path

from magneto.runs import warn_unlearnt
from magneto.training.logging import PLATEAU_FILE
from tests.said import Said


def write(run: Path, loss: float, accuracy: float = 0.5, plateau: bool = True) -> Path:
    run.mkdir(exist_ok=True)
    (run / "result.json").write_text(json.dumps({"metrics": {"loss": loss, "accuracy": accuracy}}))
    if plateau:
        (run / PLATEAU_FILE).write_text(json.dumps({"loss": 6.0, "accuracy": 0.5}))
    return run


def test_a_loss_at_the_plateau_is_remarked_on(tmp_path: Path) -> None:
    said = Said()
    warn_unlearnt(write(tmp_path / "b", 5.5), said)
    warn_unlearnt(write(tmp_path / "c", 5.95, plateau=False), said)
    # One that is overconfident and mostly right has learnt something.
    warn_unlearnt(write(tmp_path / "d", 7.0, accuracy=0.8), said)
    warn_unlearnt(tmp_path / "none", said)
    assert not said.lines
    warn_unlearnt(write(tmp_path / "a", 5.95), said)
    (line,) = said.lines
    assert "is at its unigram baseline" in line and "5.95" in line and str(tmp_path / "a") in line
