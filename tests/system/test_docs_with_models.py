"""Python and commands of pages run: on small runs and exported models, or made small themselves."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")
soundfile = pytest.importorskip("soundfile")

from magneto.cli import main  # noqa: E402
from tests.system.test_docs import NEED_A_MODEL, ROOT, command_lines  # noqa: E402

SMALL = "--training.steps 2 --training.batch_size 4 --training.evaluate_limit 1"
STACK = "--model.width 32 --model.layers 1 --model.heads 2 --model.ffn_width 64"
# Recipe, what makes it small, the run, and where it is exported, if it is.
RUNS = [
    ("causal-lm/tiny", f"{STACK} --data.max_length 32", "runs/first", "first-hf"),
    ("visual-question-answering/tiny", STACK, "runs/answers", "answers-hf"),
    ("image-classification/tiny", STACK, "runs/digits", "digits-hf"),
    ("transducer/tiny", STACK, "runs/speech", "speech-hf"),
    ("translation/tiny", "--data.max_length 32 --model.encoder_layers 1 --model.decoder_layers 1",
     "runs/translator", None),
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs, exported models, picture and recording that the pages name."""
    folder = tmp_path_factory.mktemp("pages")
    random = np.random.default_rng(0)
    Image.fromarray(random.integers(0, 256, (32, 32, 3), np.uint8)).save(folder / "scene.png")
    soundfile.write(folder / "spoken.wav", random.normal(0, 0.1, 8000).astype(np.float32), 8000)
    for recipe, small, run, exported in RUNS:
        assert main(f"train {recipe} {SMALL} {small} --out {folder / run}".split()) == 0
        if exported:
            assert main(["export", str(folder / run), str(folder / exported)]) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NEED_A_MODEL))
def test_blocks_of_python_run(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    text = (ROOT / name).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    blocks = [block for block in blocks if not block.startswith("--8<--")]
    assert blocks
    for block in blocks:
        exec(compile(block, name, "exec"), {})


# The last value of an option counts. Heads are narrow, so that a ladder's widths can be.
SHORT = ("--model.layers 1 --model.heads 16 --training.steps 2 --training.warmup_steps 1 "
         "--training.batch_size 4 --training.evaluate_limit 1 --data.max_length 32")  # fmt: skip
SMALLER = {
    "probe": SHORT,
    "compare": f"{SHORT} --placements pre,sub --lrs 1e-3 --seeds 1 --no-measurements",
    "ladder": f"{SHORT} --widths 8,16 --target 32 --lrs 1e-2",
}


@pytest.mark.slow
def test_commands_that_choose_a_placement_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = command_lines((ROOT / "docs/guide/placement.md").read_text(encoding="utf-8"))
    by_name = {line.split()[1]: shlex.split(line)[1:] for line in lines}  # the last of each kind
    assert {*SMALLER} <= {*by_name}
    for name, smaller in SMALLER.items():
        assert main([*by_name[name], *smaller.split()]) == 0, name
