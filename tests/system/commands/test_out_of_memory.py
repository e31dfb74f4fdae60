"""A step without memory ends in one line that says what to do."""

from pathlib import Path
from typing import Any

import pytest
import torch

from magneto.cli import main
from magneto.mistakes import user_lines
from magneto.training import loop

TINY = ["train", "causal-lm/tiny", "--model.layers", "1", "--model.width", "32", "--model.heads",
        "2", "--model.ffn_width", "64", "--data.max_length", "32", "--training.batch_size", "8",
        "--training.steps", "2", "--training.device", "cpu"]  # fmt: skip
CPU_SAYS = ("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you "
            "tried to allocate 4096 bytes. Error code 12 (Cannot allocate memory)")  # fmt: skip
GPU_SAYS = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB"


def test_a_step_without_memory_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def step(*_: Any) -> None:
        raise RuntimeError(CPU_SAYS)

    monkeypatch.setattr(loop, "train_step", step)
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"line {number} of some text" for number in range(400)))
    assert main([*TINY, "--data", str(text), "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "magneto: out of memory (4096 bytes more were asked for): make " in said
    assert "magneto plan" in said and "Traceback" not in said


def test_errors_that_say_so() -> None:
    assert user_lines(RuntimeError("shapes do not fit")) == []
    assert user_lines(MemoryError())[0].startswith("out of memory: ")
    (line,) = user_lines(torch.OutOfMemoryError(GPU_SAYS))
    assert "2.00 GiB more were asked for" in line
