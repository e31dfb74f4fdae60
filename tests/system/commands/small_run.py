"""A run of some steps by the command line, and what a command answers."""

import pytest

from magneto.cli import main

SMALL = """--model.width 16 --model.layers 1 --model.heads 2 --model.ffn_width 16
--training.steps 6 --training.batch_size 4 --training.save_every 2 --training.log_every 1
--training.warmup_steps 0 --training.tensorboard false --training.device cpu""".split()  # noqa: SIM905
NEW = ["train", "image-classification/tiny", *SMALL]


def outcome(capsys: pytest.CaptureFixture, *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err
