"""A step without memory says what it needs, and which options need less."""

from pathlib import Path
from typing import Any

import pytest

from magneto.cli import main
from magneto.language.causal_lm import CausalLanguageModeling
from magneto.training import loop

TINY = ["train", "causal-lm/tiny", "--model.layers", "1", "--model.width", "32", "--model.heads",
        "2", "--model.ffn_width", "64", "--data.max_length", "32", "--training.batch_size", "8",
        "--training.steps", "2", "--training.device", "cpu"]  # fmt: skip
CPU_SAYS = ("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you "
            "tried to allocate 4096 bytes. Error code 12 (Cannot allocate memory)")  # fmt: skip


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(f"line {number} of some text" for number in range(400)))
    return path


def test_a_step_without_memory_ends_in_advice(
    text: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    def step(*_: Any) -> None:
        raise RuntimeError(CPU_SAYS)

    monkeypatch.setattr(loop, "train_step", step)
    assert main([*TINY, "--data", str(text), "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "magneto: out of memory (4096 bytes more were asked for)\n" in said
    assert "magneto: by the plan a step needs 0." in said
    assert "magneto: add --model.checkpoint_activations " in said
    assert "Traceback" not in said


def test_where_no_plan_can_be_made_there_is_the_usual_line(
    text: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    def step(*_: Any) -> None:
        raise MemoryError

    def dummy_batch(self: Any, examples: int) -> None:
        raise ValueError("unknown")

    monkeypatch.setattr(loop, "train_step", step)
    monkeypatch.setattr(CausalLanguageModeling, "dummy_batch", dummy_batch)
    assert main([*TINY, "--data", str(text), "--out", str(tmp_path / "run")]) == 2
    assert "out of memory: make the model, the batch or the length" in capsys.readouterr().err
