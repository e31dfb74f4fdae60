"""The command line: help, mistakes, errors of libraries, interruption, closed streams."""

import errno
import io
import json
import math
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from magneto import __version__
from magneto.cli import COMMANDS, command_parser, guarded, main
from magneto.commands.shared import answer as print_answer
from magneto.commands.shared import duration
from magneto.data.tokenizer import load_tokenizer
from magneto.hf import Sampling
from tests.commands import answer, outcome, refused


def test_every_command_explains_itself(capsys) -> None:
    for command in COMMANDS:
        text = command_parser(command).format_help()
        assert "example:" in text and "--json" in text, command
    assert (main([]), main(["help"]), main(["--version"])) == (2, 0, 0)
    assert capsys.readouterr().out.endswith(f"\nmagneto {__version__}\n")


MISTAKES = [
    ("trian x", "did you mean train?"),
    ("finetune x", "did you mean train?"),
    ("train causal-lm/tinny", "did you mean causal-lm/tiny?"),
    ("train causal-lm/tiny --model.placement subln", "did you mean 'sub'?"),
    ("train causal-lm/tiny --jsn", "did you mean --json?"),
    ("train causal-lm/tiny --warmup-steps 5", "did you mean --training.warmup_steps?"),
    ("train causal-lm/tiny --model placement", "did you mean --model.FIELD?"),
    ("train causal-lm/tiny --training.steps", "needs a value"),
    ("train causal-lm/tiny --data /nowhere/book.txt", "no file or folder /nowhere/book.txt"),
    ("train causal-lm/tiny --data a --data.source b", "set the same field"),
    ("train causal-lm/tiny --distributed ddp", "needs torchrun"),
    ("train causal-lm/tiny --training.device cuda:99", "training.device"),
    ("train", "give a recipe"),
    ("train --resume /nowhere/run", "no run in /nowhere/run"),
    (f"recipes {__file__}", "not YAML"),
    ("train causal-lm/tiny --model.width 1000000000", "model.width must be 1 to 16,777,216, not"),
    ("train causal-lm/tiny --training.device meta", "torch can't compute on this device"),
    ("train causal-lm/tiny --data=", "no path is given"),
    ("probe causal-lm/tiny --steps x", "--steps: must be a whole number, 1 or more, not 'x'"),
    ("plan causal-lm/tiny --gpus 0", "--gpus: must be 1 or more, not 0"),
    ("plan causal-lm/tiny --utilisation 40", "--utilisation: must be in (0, 1]"),
    ("plan causal-lm/tiny --training.batch_size 64 --gpus 128", "64 is too small for 128"),
    ("probe causal-lm/tiny --placements post,sup", "did you mean 'sub'"),
    ("probe causal-lm/tiny --depths 6", "two or more positive numbers"),
    ("probe causal-lm/tiny --trial soon", "a duration such as 60s, 5m or 2h, not 'soon'"),
    ("probe causal-lm/tiny --trial 1.5m --depths 2,4", "--trial has no effect with --depths"),
    ("probe causal-lm/tiny --steps=3 --depths 2,4", "--steps has no effect with --depths"),
    ("probe causal-lm/tiny --stack encoder", "--stack has no effect without --depths"),
    ("probe causal-lm/tiny --seeds 2 --coordinates 8,16", "--seeds has no effect with --coord"),
    (f"probe causal-lm/tiny --data nowhere.txt --out {__file__}", f"{__file__} is a file; name a"),
    ("probe causal-lm/tiny --data nowhere.txt", "nowhere.txt"),
    ("probe causal-lm/tiny --coordinates 64,72", "heads would be"),
    ("train image-text-retrieval/tiny --data.augmentation.repeats 2", "copies of a pair"),
    ("train image-classification/tiny --auto-resume", "--auto-resume needs --out"),
    ("train image-classification/tiny --resume x", "uses the run's recipe"),
    ("train --resume x --out y", "writes to the run's directory"),
    ("compare causal-lm/tiny --lrs fast", "--lrs: must be a number above 0, not 'fast'"),
    ("compare causal-lm/tiny --placements pre,pre", "--placements: repeats a value: pre,pre"),
    ("compare causal-lm/tiny --grid model.layers", "--grid: must be NAME=VALUE"),
    ("compare causal-lm/tiny --grid model.lyers=1,2", "did you mean model.layers"),
    ("compare causal-lm/tiny --grid seed=1,2", "--grid seed: use --seeds"),
    ("compare causal-lm/tiny --grid model.placement=pre,sub", "use --placements"),
    ("compare causal-lm/tiny --grid model.width=1 --grid model.width=2", "width is repeated"),
    ("compare causal-lm/tiny --seed 3", "--seed 3: use --seeds"),
    ("plan causal-lm/tiny --examples 9", "--examples has no effect without training.epochs"),
    ("table runs --weights bset", "--weights: invalid choice: 'bset'"),
    ("compare causal-lm/tiny --cluster-option a=1", "--cluster-option has no effect without --cl"),
    ("bound --placement normformer", "no bound is derived for NormFormer"),
    ("bound --layers 3 --encoder-layers 2", "omit --layers"),
    (
        "tokenizer train --data x --out y --sample 100",
        "--sample: must be 101 to 2,147,483,647, not",
    ),
    ("bound --cross-gain 1", "both --encoder-layers and --decoder-layers"),
    ("bound --v 1/2", "has scales for 2 stacks, but the model has 1"),
    ("bound --v 1,2", "each of the 24 sublayers, not 2 values"),
]


def test_a_mistake_is_one_line_and_exit_code_2(capsys, tmp_path: Path, monkeypatch) -> None:
    """And nothing is written."""
    monkeypatch.chdir(tmp_path)
    for words, message in MISTAKES:
        extra = ["--out", tmp_path / "run"] if words.startswith("train causal-lm/tiny") else []
        assert message in refused(capsys, *words.split(), *extra), words
    assert not list(tmp_path.iterdir())


def test_a_run_is_not_overwritten(language_run: Path, capsys) -> None:
    line = refused(capsys, "train", "causal-lm/tiny", "--out", language_run)
    assert f"magneto train --resume {language_run}" in line
    line = refused(capsys, "probe", language_run)
    assert f"is a run. Its recipe is {language_run / 'recipe.yaml'}" in line


ANSWERS = """
import json, sys
before = set(sys.modules)
from magneto.cli import COMMANDS, main

main(["--help"])
loaded = sorted(set(sys.modules) - before)
words = [[name, "--no-such-option"] for name in COMMANDS] + json.loads(sys.argv[1])
answers = {" ".join(each): [main(each), "torch" in sys.modules] for each in words}
print(json.dumps([loaded, answers]))
"""


def test_help_and_mistakes_are_answered_before_torch_is_imported(tmp_path: Path) -> None:
    """Checking words, a recipe or a run's name does not need torch, whose import takes seconds.

    Help needs only the standard library: no numpy, no command's module, no YAML.
    """
    others = [
        ["train", "causal-lm/tiny", "--training.lr", "1"],
        ["train", "causal-lm/tinny"],
        ["train", "--resume", str(tmp_path)],
        ["compare", "causal-lm/tiny", "--lrs", "x"],
        ["probe", "causal-lm/tinny"],
        ["recipes", "causal-lm/tinny"],
        *([verb, str(tmp_path)] for verb in ("predict", "evaluate", "generate", "export")),
        ["translate", str(tmp_path), "--to", "de"],
        ["transcribe", str(tmp_path), "a.wav"],
    ]
    words = [sys.executable, "-c", ANSWERS, json.dumps(others)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    *usage, answered = done.stdout.splitlines()
    loaded, answers = json.loads(answered)
    assert {name.split(".")[0] for name in loaded} <= {"magneto", *sys.stdlib_module_names}
    assert "magneto.cli" in loaded
    assert not [name for name in loaded if name.startswith("magneto.commands")]
    assert all(name in "\n".join(usage) for name in COMMANDS)
    assert len(answers) == len(COMMANDS) + len(others)
    assert not [each for each, (code, _) in answers.items() if code != 2]
    assert not [each for each, (_, imported) in answers.items() if imported]


def test_durations_are_read_in_seconds() -> None:
    assert [*map(duration, ("90", "60s", "5m", "1.5h", "2h"))] == [90, 60, 300, 5400, 7200]


SAID_BY_LIBRARIES = [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
         "Out of memory (requested 8 bytes more)"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79 GiB"),
     "Out of memory (requested 2.00 GiB more). Reduce the model, the batch or the length, or raise "
     "training.gradient_accumulation_steps. `magneto plan` finds what fits."),
    (MemoryError(), "Out of memory"),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk or a quota is full"),
        (OSError("246642 requested and 50000 written"), "the disk or a quota is full"),
        (SafetensorError("I/O error: (os error 28)"), "the disk or a quota is full"),
        (Exception("No space left on device (os error 28)"), "the disk or a quota is full"),
        (SafetensorError("header too large"), "Damaged weight file: header too large"),
        (ValueError("2 requested and 3 given"), "magneto: 2 requested and 3 given"),
        (FileExistsError(errno.EEXIST, "File exists", __file__), "py is a file, not a folder"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", f"{__file__}/a/b"), "py is a file"),
        (PermissionError(errno.EACCES, "Permission denied", "x/y"), "x/y: Permission denied"),
]  # fmt: skip


def raising(error: BaseException) -> Callable[[], int]:
    def run() -> int:
        raise error

    return run


def test_what_a_library_says_of_memory_and_disk_is_one_line(capsys) -> None:
    for error, message in SAID_BY_LIBRARIES:
        assert guarded(raising(error)) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("magneto: ") and message in line


def test_a_full_disk_is_told_by_the_exit_code(capsys, monkeypatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert guarded(lambda: print("an answer")) == 2
    assert "the disk or a quota is full" in capsys.readouterr().err


def test_options_of_sampling_reach_the_generation(language_run: Path, capsys, monkeypatch) -> None:
    seen: list[tuple] = []
    monkeypatch.setattr("magneto.hf.generate", lambda *given: seen.append(given[2:]) or ["x"])
    words = "--new-tokens 3 --temperature 0.5 --top-k 7 --top-p 0.9 --count 2 --seed 5"
    given = ["generate", language_run, "a b"]
    assert answer(capsys, *given, *words.split())["texts"] == ["x"]
    assert answer(capsys, *given, "--beams", "2")["texts"] == ["x"]
    chosen = {"new_tokens": 3, "temperature": 0.5, "top_k": 7, "top_p": 0.9}
    assert seen == [("a b", Sampling(**chosen, count=2, seed=5)), ("a b", Sampling(beams=2))]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("c\nü \n".encode())))
    assert answer(capsys, *given[:2], "-")["prompt"] == seen[-1][0] == "c\nü "
    for option in ("temperature", "top-k", "top-p", "seed"):
        line = refused(capsys, *given, "--beams", "2", f"--{option}", "1")
        assert f"--{option} has no effect with --beams above 1" in line
    line = refused(capsys, *given, "--length-penalty=1")
    assert "--length-penalty has no effect with causal-lm runs" in line


def test_numbers_that_are_not_finite_are_null_and_one_rank_prints(capsys, monkeypatch) -> None:
    value, args = {1: (math.nan, [-math.inf, 1.5])}, Namespace(json=True)
    assert print_answer(args, value, ["text"]) == 0
    assert capsys.readouterr().out == '{"1": [null, [null, 1.5]]}\n'
    monkeypatch.setenv("RANK", "1")
    for args.json in (True, False):
        assert print_answer(args, value, ["text"]) == 0
    assert not capsys.readouterr().out


def test_control_c_ends_any_command(monkeypatch, capsys) -> None:
    stop = raising(KeyboardInterrupt())
    monkeypatch.setattr("magneto.commands.recipes.main", lambda words: stop())
    assert outcome(capsys, "recipes") == (130, "", "magneto: stopped\n")


def test_a_fault_of_ours_is_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="shape mismatch"):
        guarded(raising(RuntimeError("shape mismatch")))


def test_what_an_encoding_has_no_sign_for_is_printed_as_an_escape() -> None:
    """This includes bytes of a file name that are not UTF-8."""
    for encoding, sign, printed in (("ascii", "ü", b"\\xfc"), ("utf-8", "\udcff", b"\\udcff")):
        stdout = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stdout", stdout)
            patch.setattr("magneto.cli.USAGE", f"{sign}{{commands}}")
            assert main(["--help"]) == 0
            stdout.flush()
        assert printed in stdout.buffer.getvalue()  # type: ignore[attr-defined]


def test_closed_streams_end_nothing(book: Path, tmp_path: Path) -> None:
    """Otherwise the next opened file would be number 2, and lines would be written into it."""
    out = tmp_path / "t.json"
    words = f"-m magneto tokenizer train --data {book} --vocab-size 264 --out {out}"
    command = f"exec {sys.executable} {words} <&- >&- 2>&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr
    assert len(load_tokenizer(out).pieces()) == 264
