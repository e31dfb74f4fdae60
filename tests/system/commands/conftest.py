"""A text and a language model's run on it, which many tests of commands look at, or copy."""

from pathlib import Path

import pytest

from magneto.cli import main

SMALL = """--model.width 32 --model.layers 2 --model.heads 4 --model.ffn_width 48
--data.tokenizer bytes --data.max_length 64 --training.batch_size 4 --training.steps 6
--training.save_every 2 --training.warmup_steps 1 --training.tensorboard false
--training.device cpu""".split()  # noqa: SIM905


@pytest.fixture(scope="session")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("book") / "book.txt"
    path.write_text("\n\n".join(f"A paragraph about the number {i}. " * 40 for i in range(200)))
    return path


@pytest.fixture(scope="session")
def language_run(book: Path) -> Path:
    """A finished run of six steps; nobody writes there."""
    run = book.parent / "run"
    assert main(["train", "causal-lm/tiny", "--data", str(book), "--out", str(run), *SMALL]) == 0
    return run
