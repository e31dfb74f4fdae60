"""The whole chain by the command line: pre-training, each head, scores, a report."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

from PIL import Image

from magneto.cli import main
from magneto.vision_language.scenes import scene_statements
from magneto.weights import open_tensors

pytestmark = pytest.mark.slow

SHAPE = {"width": 32, "layers": 2, "heads": 2, "ffn_width": 64}
STEPS = {"steps": 4, "batch_size": 12, "warmup_steps": 1, "evaluate_every": 2, "save_every": 2,
         "evaluate_limit": 1, "tensorboard": "false", "device": "cpu"}  # fmt: skip
SMALL = [f"--model.{name}={value}" for name, value in SHAPE.items()]
SMALL += [f"--training.{name}={value}" for name, value in STEPS.items()]
# The task of each head, and the metric by which its runs are chosen.
HEADS = {
    "questions": ("visual-question-answering", "accuracy"),
    "statements": ("visual-reasoning", "accuracy"),
    "retrieval": ("image-text-retrieval", "mean_recall"),
    "captions": ("image-captioning", "cider"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, module_cache: Path) -> Path:
    """A folder with two images, a pre-trained run, and a run of each head that began with it."""
    folder = tmp_path_factory.mktemp("chain")
    scenes = scene_statements()["validation"]
    for side in ("left", "right"):
        Image.fromarray(scenes[0][side].pixels()).save(folder / f"{side}.png")
    pre = folder / "pre"
    assert main(["train", "vision-language-modelling/tiny", "--out", str(pre), *SMALL]) == 0
    for name, (task, _) in HEADS.items():
        words = ["train", f"{task}/tiny", "--out", str(folder / name), *SMALL]
        assert main([*words, "--model.pretrained", str(pre)]) == 0
    return folder


def said(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    """What a command says as JSON."""
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", HEADS)
def test_each_head_is_measured_and_shown(place: Path, name: str, capsys) -> None:
    """It keeps the tokenizer of the run it began with, which it does not need any more."""
    run, (_, metric) = place / name, HEADS[name]
    kept = json.loads((run / "result.json").read_text())
    assert kept["status"] == "finished" and kept["step"] == 4
    (place / "pre").rename(place / "gone")
    try:
        found = said(capsys, "evaluate", run, "--limit", 1)
    finally:
        (place / "gone").rename(place / "pre")
    assert found[metric] == kept["best"]["value"]
    own, first = (
        folder / "assets" / "tokenizer" / "tokenizer.json" for folder in (run, place / "pre")
    )
    assert own.read_bytes() == first.read_bytes()
    assert main(["report", str(run), "--out", str(place / f"{name}-report")]) == 0
    assert (place / f"{name}-report" / "report.html").stat().st_size > 10_000


def test_heads_begin_with_the_pre_trained_encoder(place: Path) -> None:
    """After two steps its matrices are nearly those of that run; drawn anew they would not be."""
    first = open_tensors(place / "pre" / "best")
    matrices = [name for name in first if name.startswith("encoder.transformer")
                and len(first[name].shape) == 2]  # fmt: skip
    assert len(matrices) == 16
    for name in HEADS:
        now = open_tensors(place / name / "checkpoints" / "step-00000002")
        for key in matrices:
            old = first[key].read()
            assert 0 <= (now[key].read() - old).norm() < 0.2 * old.norm(), (name, key)
