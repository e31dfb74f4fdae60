"""The whole chain by the command line: pre-training, each head, scores, answers, a new process."""

import json
import os
import subprocess
import sys
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
LOADER = """
import json, sys
import torch, transformers
from PIL import Image
found = {}
for name, (auto, texts, files) in json.loads(sys.argv[1]).items():
    model = getattr(transformers, auto).from_pretrained(name, trust_remote_code=True).eval()
    processor = transformers.AutoProcessor.from_pretrained(name, trust_remote_code=True)
    pictures = [Image.open(file) for file in files]
    images = [pictures] if name == "statements" else pictures
    read = processor(images=images, text=texts, return_tensors="pt")
    with torch.no_grad():
        if name == "captions":
            written = model.generate(read["pixel_values"], num_beams=3, length_penalty=0.6)
            found[name] = processor.batch_decode(written, skip_special_tokens=True)[0].strip()
        elif name == "retrieval":
            found[name] = list(model(**read).logits_per_image.shape)
        else:
            (logits,) = model(**read).logits
            shares = logits.sigmoid() if name == "questions" else logits.softmax(0)
            labels = model.config.id2label
            found[name] = {labels[n]: share for n, share in enumerate(shares.tolist())}
assert not any(module.startswith("magneto.training") for module in sys.modules)
print(json.dumps(found))
"""


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


def test_an_export_answers_in_a_new_process_as_the_run_does(place: Path, capsys) -> None:
    left, right = place / "left.png", place / "right.png"
    asked = {"questions": ["what shape is red"], "statements": ["both images have a cross"],
             "retrieval": ["a red cross at the left"], "captions": ["a"]}  # fmt: skip
    files = {name: [str(left), str(right)] if name == "statements" else [str(left)]
             for name in HEADS}  # fmt: skip
    expected: dict[str, Any] = {"retrieval": [1, 1]}
    for name in ("questions", "statements"):
        words = ["predict", place / name, *files[name], asked[name][0], "--top", 99]
        first = said(capsys, *words)["images"][0]
        expected[name] = {row["label"]: row["share"] for row in first["labels"]}
    (written,) = said(capsys, "generate", place / "captions", left)["images"]
    expected["captions"] = written["caption"]
    given = {}
    for name in HEADS:
        auto = said(capsys, "export", place / name, place / "exported" / name)["auto"]
        given[name] = (auto, asked[name], files[name])
    done = subprocess.run(
        [sys.executable, "-c", LOADER, json.dumps(given)], cwd=place / "exported",
        env=os.environ | {"HF_HOME": str(place / "hub"), "HF_HUB_OFFLINE": "1"},
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for name in ("questions", "statements"):
        assert found.pop(name) == pytest.approx(expected.pop(name), abs=1e-5)
    assert found == expected
