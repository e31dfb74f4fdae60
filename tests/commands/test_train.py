"""`magneto train` as a user meets it when something goes wrong: what it says, what it leaves."""

import json
from pathlib import Path

import pytest

from magneto.cli import main

pytest.importorskip("sklearn")

SMALL = """--model.width 16 --model.layers 1 --model.heads 2 --model.ffn_width 16
--training.steps 6 --training.batch_size 4 --training.save_every 2 --training.log_every 1
--training.warmup_steps 0 --training.tensorboard false --training.device cpu""".split()  # noqa: SIM905
NEW = ["train", "image-classification/tiny", *SMALL]


def outcome(capsys: pytest.CaptureFixture, *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_diverged_run_has_an_exit_code_of_its_own(tmp_path: Path, capsys) -> None:
    words = [*NEW, "--training.learning_rate", "1e30", "--out", tmp_path / "run", "--json"]
    code, out, err = outcome(capsys, *words)
    assert code == 3 and json.loads(out)["status"] == "diverged"
    assert "try a lower --training.learning_rate" in err.splitlines()[-1]


def test_exit_codes_are_in_the_help(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "3 if it diverged" in capsys.readouterr().out
