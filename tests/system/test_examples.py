"""Examples in Python run and reach a plausible result."""

import importlib.util
import json
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

from magneto.data.problems import DataProblems
from magneto.vision_language.config import QuestionAnsweringDataConfig
from magneto.vision_language.question_answering import load_questions

EXAMPLES = Path(__file__).parents[2] / "examples"


pytestmark = pytest.mark.usefixtures("few_texts")


def load(name: str) -> ModuleType:
    """Import an example by its file's name."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_there_is_a_test_for_every_example() -> None:
    here = Path(__file__).parent
    source = "".join((here / f"test_{name}.py").read_text() for name in ("examples", "guide"))
    assert not [path.stem for path in EXAMPLES.glob("*.py") if path.stem not in source]


def test_own_loop() -> None:
    losses = load("own_loop").main(steps=6)
    assert losses[-1] < losses[0] - 0.5


def test_accelerate_loop() -> None:
    pytest.importorskip("accelerate")
    losses = load("accelerate_loop").main(steps=6)
    assert losses[-1] < losses[0] - 0.5


def test_hugging_face_trainer(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    loss, sample = load("hugging_face_trainer").main(tmp_path, steps=6)
    # 256 equally likely bytes are ln(256) nats.
    assert loss < math.log(256)
    assert sample.startswith("Return the ")


def test_peft_lora(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    found = load("peft_lora").main(tmp_path, steps=6)
    assert found["after"] < found["before"] - 0.3
    assert found["merged"] == pytest.approx(found["after"], abs=1e-4)
    assert 0 < found["share"] < 0.25
    held = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert "adapter_model.safetensors" in held and "model.safetensors" not in held


def test_easy_vqa_table(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for split in ("train", "test"):
        (tmp_path / split / "images").mkdir(parents=True)
        rows = [["is it red?", "no", 1], ["what color is it?", "grey", 0]]
        (tmp_path / split / "questions.json").write_text(json.dumps(rows))
        for number in range(2):
            name = tmp_path / split / "images" / f"{number}.png"
            image.new("RGB", (8, 8), (9 * number,) * 3).save(name)
    load("easy_vqa_table").main(tmp_path)
    found = load_questions(QuestionAnsweringDataConfig(source=str(tmp_path)), DataProblems())
    assert found.answers == ["grey", "no"]
    for rows_of in (found.train, found.validation):
        assert rows_of.values("question") == ["is it red?", "what color is it?"]
        assert rows_of.values("answers") == [("no",) * 10, ("grey",) * 10]
        assert [int(rows_of.open(row).pixels()[0, 0, 0]) for row in range(2)] == [9, 0]


def test_bits_per_byte_of_a_cycle() -> None:
    """Four equally frequent bytes need 2 bits each, and none if the byte before is known."""
    example = load("bits_per_byte")
    cycle = b"abcd" * 5000
    assert example.unigram_bits(cycle, cycle) == pytest.approx(2, abs=0.05)
    assert example.bigram_bits(cycle, cycle) < 0.05 and example.xz_bits(cycle, cycle)[1] < 0.05


def test_open_a_run(language_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = load("open_a_run").main(language_run)
    result = json.loads((language_run / "result.json").read_text())
    assert found["loss"] == pytest.approx(result["metrics"]["loss"])
    output = capsys.readouterr().out
    assert "causal-lm, sub, " in output and "(1, " in output and "(3, " in output
