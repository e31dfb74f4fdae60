"""Finished runs, shared by the tests of commands, and what makes runs small."""

from pathlib import Path

import pytest

from magneto.cli import main

STEPS = """--training.batch_size 4 --training.steps 6 --training.save_every 2
--training.tensorboard false --training.device cpu"""
SMALL = f"""--model.width 32 --model.layers 2 --model.heads 4 --model.ffn_width 48
--data.tokenizer bytes --data.max_length 64 --training.warmup_steps 1 --training.log_every 1
--training.evaluate_limit 2 {STEPS}""".split()
NEW = f"""train image-classification/tiny --model.width 16 --model.layers 1 --model.heads 2
--model.ffn_width 16 --training.log_every 1 --training.warmup_steps 0 {STEPS}""".split()


@pytest.fixture(scope="session")
def language_run(book: Path) -> Path:
    """A finished, read-only run of six steps."""
    run = book.parent / "run"
    assert main(["train", "causal-lm/tiny", "--data", str(book), "--out", str(run), *SMALL]) == 0
    return run


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of an image classifier, with checkpoints after 4 and 6 steps."""
    pytest.importorskip("sklearn")
    run = tmp_path_factory.mktemp("digits") / "run"
    assert main([*NEW, "--out", str(run)]) == 0
    return run
