"""The benchmark of GPUs runs in its tiny form, leaves out what does not fit, and loses nothing."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

pytest.importorskip("transformers")

from benchmarks import gpu, gpu_steps
from benchmarks.contenders import CASES, CONTENDERS, build
from benchmarks.gpu_steps import step_flops
from benchmarks.training_step import make_step


@pytest.mark.usefixtures("few_texts")
def test_a_tiny_run_measures_everything(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of contenders, tests/system/test_bench.py builds the others too."""
    some = {name: CONTENDERS[name] for name in ("magneto sub", "nanoGPT style")}
    monkeypatch.setattr(gpu_steps, "CONTENDERS", some)
    words = ["--device", device.type, "--scale", "tiny", "--minutes", "9", "--out", str(tmp_path)]
    assert gpu.main(words) == 0
    (path,) = tmp_path.glob("gpu-*-tiny.json")
    found = json.loads(path.read_text())["sections"]
    assert list(found) == ["rate", "step-tiny", "language-model", "depth", "decoding", "kernels"]
    bf16, _ = found["rate"]["rows"]
    assert bf16["precision"] == "bf16" and bf16["measured"] > 0
    rows = found["step-tiny"]["rows"]
    assert {(row["contender"], row["mode"]) for row in rows} == {
        ("magneto sub", "eager"), ("magneto sub", "compiled"), ("nanoGPT style", "eager"),
    }  # fmt: skip
    # A share may be above one: on a CPU, products of 64 rows in bf16 are slower than a whole step.
    flops, peak = step_flops(CASES["tiny"]), bf16["measured"]
    for row in rows:
        assert row["MFU, measured"] == pytest.approx(flops / (row["median_ms"] / 1e3) / peak)
    trained = found["language-model"]["rows"]
    assert [(row["placement"], len(row["losses"])) for row in trained] == [
        ("sub", 20), ("pre", 20), ("post", 20)
    ]  # fmt: skip
    assert all(row["finite"] for row in found["depth"]["rows"])
    assert len(found["decoding"]["rows"]) == 6 and found["decoding"]["beam_search"]
    page = path.with_suffix(".md").read_text()
    assert "| nanoGPT style | eager |" in page and "loss at 20" in page


def test_the_operations_of_a_step_are_counted_right() -> None:
    case = CASES["tiny"]
    cpu = torch.device("cpu")
    model = build("magneto pre", case, cpu)
    take = make_step(model, case, cpu, "fp32", model)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        take()
    assert counter.get_total_flops() == step_flops(case)


def test_a_machine_without_a_gpu_is_told_so(capsys: pytest.CaptureFixture) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(SystemExit):
        gpu.main(["--device", "cuda"])
    assert "sees no CUDA device here" in capsys.readouterr().err
