"""Worked examples of the guide: the commands and blocks of Python of a section run in order.

Further options make the page's commands fast.
"""

import re
import runpy
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from magneto.cli import main as magneto
from magneto.lab import sweep

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
Follow = Callable[..., dict[str, str]]


@pytest.fixture
def follow(tmp_path: Path, monkeypatch, capsys, without_pdf: None, few_texts: None) -> Follow:
    """Return a function that runs the examples of a section of a page in an empty folder."""
    (tmp_path / "examples").symlink_to(EXAMPLES, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("PYTHONPATH", f"{EXAMPLES}:{ROOT / 'src'}")

    def run(page: str, heading: str, small: Mapping[str, str], only: str = "") -> dict[str, str]:
        """Run a section; return the output of each command, and of Python as "python"."""
        printed, names = {}, {}
        for language, block in blocks(page, heading):
            if language == "python" and not block.startswith("--8<--"):
                exec(compile(block, page, "exec"), names)
                printed["python"] = capsys.readouterr().out
            for words in map(shlex.split, block.splitlines() if language == "" else ()):
                if words[0] == "python":
                    monkeypatch.setattr(sys, "argv", words[1:])
                    runpy.run_path(words[1], run_name="__main__")
                elif words[0] == "magneto" and words[1] in (only.split() or words):
                    assert magneto([*words[1:], *small.get(words[1], "").split()]) == 0
                else:
                    assert words[0] in ("magneto", "export")
                printed[words[0] if words[0] == "python" else words[1]] = capsys.readouterr().out
        return printed

    return run


def blocks(page: str, heading: str) -> list[tuple[str, str]]:
    """Return the language and text of every block below a heading of the guide."""
    text = (ROOT / "docs" / "guide" / f"{page}.md").read_text(encoding="utf-8")
    section = re.split(r"^##? ", text.split(f"# {heading}\n")[1], flags=re.MULTILINE)[0]
    return re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def test_images_to_a_pipeline(follow: Follow) -> None:
    pytest.importorskip("transformers")
    small = {"train": "--training.steps 50 --training.batch_size 32 --model.layers 1"}
    printed = follow("export", "Example: from a folder of images to a pipeline", small)
    first, second = re.findall(r"'label': '(\d)', 'score': ([\d.]+)", printed["python"])
    assert first[0] == "0" and float(first[1]) > float(second[1])


def test_a_corpus_beside_n_grams(follow: Follow) -> None:
    small = """--model.width 32 --model.layers 1 --model.heads 2 --model.ffn_width 64
        --data.tokenizer bytes --data.max_length 32 --training.batch_size 4 --training.steps 3"""
    printed = follow("python", "Example: a language model compared with n-grams", {"train": small})
    bits = dict(re.findall(r"^  (.+?)\s+([\d.]+)$", printed["python"], re.MULTILINE))
    assert list(bits) == ["this model", "unigram", "bigram", "xz -9",
                          "xz -9 after the training text"]  # fmt: skip
    # Three steps teach little.
    assert float(bits["bigram"]) < float(bits["unigram"]) < float(bits["this model"])
    assert "better than this model: unigram" in printed["python"]


def test_a_placement_through_compare(follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without workers, whose processes tests/system/test_sweep.py starts."""
    monkeypatch.setattr(sweep, "run_local", lambda folder, *_: sweep.work(folder) >= 0)
    small = """--model.width 32 --model.layers 1 --model.heads 2 --model.ffn_width 64
        --placements pre,new_placement:SANDWICH --lrs 1e-3 --seeds 1
        --training.steps 2 --training.tensorboard false --no-measurements --jobs 1"""
    printed = follow("new-placement", "A new placement", {"compare": small}, only="compare")
    assert "Sandwich" in printed["compare"]
    report = Path("runs/sandwich/report.md").read_text(encoding="utf-8")
    assert "Sandwich" in report


NAMES = "age,sex,bmi,bp,s1,s2,s3,s4,s5,s6"
PATIENTS = ("59,2,32.1,101,157,93.2,38,4,4.8598,87", "48,1,21.6,87,183,103.2,70,3,3.8918,69")
TASK = ("new-task", "Example: regression on a table")


def test_a_task(follow: Follow, capsys: pytest.CaptureFixture[str]) -> None:
    Path("patients.csv").write_text("\n".join([NAMES, *PATIENTS]))
    train = "--model.layers 1 --training.epochs 8 --training.learning_rate 3e-3"
    small = {"train": train, "plan": "--model.layers 1"}
    printed = follow(*TASK, small, only="train evaluate predict report export plan")
    worse, better = map(float, printed["predict"].split())
    assert 50 < better < worse - 30 < 300
    assert float(printed["evaluate"].split()[-1]) < 0.5  # the mean of all patients has 0.85
    assert Path("diabetes-model", "model.safetensors").is_file()
    assert "diabetes.Regressor" in printed["export"]
    Path("bad.csv").write_text("\n".join([NAMES.replace("bmi", "weight"), *PATIENTS]))
    assert magneto(["predict", "runs/diabetes", "bad.csv"]) == 2
    assert "bad.csv, row 2: KeyError: 'bmi'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_task_through_compare_and_probe(follow: Follow) -> None:
    follow(*TASK, {"compare": "--training.epochs 10"}, only="compare probe")


def test_the_example_of_a_new_task_is_short() -> None:
    assert len((EXAMPLES / "diabetes.py").read_text(encoding="utf-8").splitlines()) <= 70
