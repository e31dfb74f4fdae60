"""Every example runs, and does what it says."""

import importlib.util
import json
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from magneto.cli import main as magneto
from magneto.data.problems import DataProblems
from magneto.vision_language.config import QuestionAnsweringDataConfig
from magneto.vision_language.questions import load_questions

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The built-in text takes seconds to make; most examples read it, and need some of it."""
    texts = [f"Return the sum of {n} and {n * n % 7} as a number.\n" * 6 for n in range(60)]
    monkeypatch.setattr("magneto.data.documents.docstrings", lambda: texts)


def load(name: str) -> ModuleType:
    """Import an example by its file's name."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_there_is_a_test_for_every_example() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert all(f'load("{path.stem}")' in source for path in EXAMPLES.glob("*.py"))


def test_own_loop() -> None:
    losses = load("own_loop").main(steps=12)
    assert losses[-1] < losses[0] - 0.5


def test_accelerate_loop() -> None:
    pytest.importorskip("accelerate")
    losses = load("accelerate_loop").main(steps=12)
    assert losses[-1] < losses[0] - 0.5


def test_hugging_face_trainer(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    loss, sample = load("hugging_face_trainer").main(tmp_path, steps=12)
    # 256 equally likely bytes are ln(256) nats.
    assert loss < math.log(256)
    assert sample.startswith("Return the ")


def test_peft_lora(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    found = load("peft_lora").main(tmp_path, steps=15)
    assert found["after"] < found["before"] - 0.3
    assert found["merged"] == pytest.approx(found["after"], abs=1e-4)
    assert 0 < found["share"] < 0.25
    held = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert "adapter_model.safetensors" in held and "model.safetensors" not in held


def test_new_placement() -> None:
    ratios = load("new_placement").main(layers=6)
    assert all(math.isfinite(ratio) and ratio > 0 for ratio in ratios.values())
    assert len(set(ratios.values())) == len(ratios)


def test_easy_vqa_table(tmp_path: Path) -> None:
    """Its questions and answers, with the images that they are about."""
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
        assert [int(rows_of.open(row)[0].pixels()[0, 0, 0]) for row in range(2)] == [9, 0]


QUICK = ("train", "evaluate", "predict", "report", "export", "plan")


def commands_of_the_page() -> list[list[str]]:
    """Return the words of the commands that "A new task" shows."""
    page = (EXAMPLES.parent / "docs" / "extend" / "task.md").read_text(encoding="utf-8")
    lines = [line.split() for line in page.splitlines() if line.startswith("magneto ")]
    assert {words[1] for words in lines} == {*QUICK, "compare", "probe"}
    return [words[1:] for words in lines]


@pytest.mark.parametrize(
    "verbs", [QUICK, pytest.param(("compare", "probe"), marks=pytest.mark.slow)], ids="-".join
)
def test_diabetes_by_the_commands_of_its_page(
    verbs: tuple[str, ...], tmp_path: Path, without_pdf: None, monkeypatch, capsys
) -> None:
    load("diabetes")  # found on the path below, as on the page
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("PYTHONPATH", f"{EXAMPLES}:{EXAMPLES.parent / 'src'}")
    (tmp_path / "examples").symlink_to(EXAMPLES, target_is_directory=True)
    names = "age,sex,bmi,bp,s1,s2,s3,s4,s5,s6"
    rows = ("59,2,32.1,101,157,93.2,38,4,4.8598,87", "48,1,21.6,87,183,103.2,70,3,3.8918,69")
    (tmp_path / "patients.csv").write_text("\n".join([names, *rows]))
    said = {}
    for verb, *words in commands_of_the_page():
        short = ["--training.epochs", "10"] if verb in ("train", "compare") else []
        if verb in verbs:
            assert magneto([verb, *words, *short]) == 0
            said[verb] = capsys.readouterr().out
    if verbs == QUICK:
        worse, better = map(float, said["predict"].split())
        assert 50 < better < worse - 30 < 300
        loss = float(said["evaluate"].split()[-1])
        assert loss < 0.6  # the mean of all patients has 0.97
        assert Path("diabetes-model", "model.safetensors").is_file()
        assert "diabetes.Regressor" in said["export"]
        bad = "\n".join([names.replace("bmi", "weight"), *rows])
        Path("bad.csv").write_text(bad)
        assert magneto(["predict", "runs/diabetes", "bad.csv"]) == 2
        assert "bad.csv, row 1: KeyError: 'bmi'" in capsys.readouterr().err


def test_the_example_of_a_new_task_is_short() -> None:
    assert len((EXAMPLES / "diabetes.py").read_text(encoding="utf-8").splitlines()) <= 70


def test_bits_per_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for number in range(40):
        lines = (f"Line {line} of file {number} is a line of text.\n" for line in range(40))
        (text / f"{number}.txt").write_text("".join(lines))
    words = ["train", "causal-lm/tiny", "--data", str(text), "--out", str(tmp_path / "run")]
    small = {
        "model.width": 32, "model.layers": 1, "model.heads": 2, "model.ffn_width": 64,
        "data.tokenizer": "bytes", "data.max_length": 32, "training.batch_size": 4,
        "training.steps": 3, "training.warmup_steps": 1,
    }  # fmt: skip
    words += [part for key, value in small.items() for part in (f"--{key}", str(value))]
    assert magneto(words) == 0
    example = load("bits_per_byte")
    cycle = b"abcd" * 5000
    assert example.unigram_bits(cycle, cycle) == pytest.approx(2, abs=0.05)
    assert example.bigram_bits(cycle, cycle) < 0.05 and example.xz_bits(cycle, cycle)[1] < 0.05
    bits = example.main(tmp_path / "run")
    assert bits["bigram"] < bits["unigram"] < 8
    assert bits["this model"] > bits["bigram"]  # three steps teach little
    capsys.readouterr()
    example.show(bits)
    assert "better than this model: unigram" in capsys.readouterr().out


def test_open_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"""train causal-lm/tiny --out {tmp_path / "run"} --model.width 32 --model.layers 1
        --model.heads 2 --model.ffn_width 64 --data.tokenizer bytes --data.max_length 16
        --training.batch_size 2 --training.steps 3 --training.log_every 1
        --training.evaluate_limit 2"""
    assert magneto(words.split()) == 0
    capsys.readouterr()
    found = load("open_a_run").main(tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert found["loss"] == pytest.approx(result["metrics"]["loss"])
    said = capsys.readouterr().out
    assert "causal-lm, sub, " in said and "(1, " in said and "(3, " in said


def test_seeds_make_examples_repeatable() -> None:
    own_loop = load("own_loop")
    first = own_loop.main(steps=2, placement="post")
    torch.manual_seed(99)
    assert own_loop.main(steps=2, placement="post") == first
