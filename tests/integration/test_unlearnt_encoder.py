"""A warning about a pre-trained encoder that is at its unigram baseline."""

import json
from pathlib import Path

import pytest

from magneto.cli import main
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


def test_fine_tuning_says_it_when_it_begins(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    shape = ["--model.width", "16", "--model.layers", "1", "--model.heads", "2",
             "--model.ffn_width", "16", "--training.tensorboard", "false"]  # fmt: skip
    (tmp_path / "text.txt").write_text("".join(f"a word of {i}\n\n" for i in range(4000)))
    text = ["--data", str(tmp_path / "text.txt"), "--data.tokenizer", "bytes",
            "--data.max_length", "32"]  # fmt: skip
    run = tmp_path / "encoder"
    words = ["train", "masked-lm/tiny", *text, *shape, "--training.steps", "1"]
    assert main([*words, "--out", str(run)]) == 0
    assert json.loads((run / PLATEAU_FILE).read_text())["loss"] > 1
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\n" + "".join(f"word {i},{i % 20 == 0}\n" for i in range(200)))
    words = ["train", "text-classification/tiny", "--data", str(rows), *shape, "--training.steps",
             "1", "--model.pretrained", str(run), "--out", str(tmp_path / "run")]  # fmt: skip
    capsys.readouterr()
    code = main(words)
    said = capsys.readouterr().err
    assert code == 0, said
    assert f"warning: the encoder of {run} is at its unigram baseline" in said
    assert "Imbalanced classes: 'False' has 9" in said
