"""Sentences spoken by espeak-ng, as LibriSpeech lays them out: heard from folder to batch, learnt.

espeak-ng is a program of its own (Debian: apt install espeak-ng); without it there is nothing to
test here.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from magneto.cli import main
from magneto.runs import load_run
from magneto.speech.batching import PreparedSpeech
from magneto.speech.config import SpeechDataConfig

pytest.importorskip("jiwer")
soundfile = pytest.importorskip("soundfile")
pytestmark = pytest.mark.slow

WORDS = [
    "the", "a", "old", "young", "captain", "sailor", "boat", "harbour", "saw", "left", "found",
    "and", "in", "under", "river", "bridge",
]  # fmt: skip
VOICES = ("en-gb", "en-us", "en-gb-scotland", "en-gb+f3")
SMALL = """--model.width 64 --model.ffn_width 256 --model.layers 2 --data.tokenizer characters
--data.text_case lower --data.sample_rate 16000 --data.max_frames 3000
--training.steps 240 --training.warmup_steps 24 --training.evaluate_every 0
--training.save_every 0 --training.tensorboard false --training.device cpu""".split()  # noqa: SIM905


def spoken(root: Path, split: str, speaker: int, count: int) -> None:
    """Write a chapter of sentences, each of four words."""
    folder = root / split / str(speaker) / "1"
    folder.mkdir(parents=True)
    lines = []
    for number in range(count):
        start = 7 * number + 3 * speaker
        text = " ".join(WORDS[(start + step * (1 + number % 5)) % len(WORDS)] for step in range(4))
        id = f"{speaker}-1-{number:04d}"
        wav = folder / f"{id}.wav"
        voice, rate = VOICES[speaker % len(VOICES)], str(140 + 10 * (number % 5))
        subprocess.run(["espeak-ng", "-v", voice, "-s", rate, "-w", str(wav), text], check=True)
        samples, sample_rate = soundfile.read(wav)  # 22,050 Hz: it is resampled
        soundfile.write(folder / f"{id}.flac", samples, sample_rate)
        wav.unlink()
        lines.append(f"{id} {text.upper()}")
    (folder / f"{speaker}-1.trans.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("espeak-ng") is None:
        pytest.skip("espeak-ng is not installed (Debian: apt install espeak-ng)")
    place = tmp_path_factory.mktemp("espeak") / "LibriSpeech"
    for speaker in range(3):
        spoken(place, "train-clean-100", speaker, 40)
    spoken(place, "dev-clean", 3, 12)
    return place


def test_sentences_become_batches(root: Path) -> None:
    config = SpeechDataConfig(source=str(root), tokenizer="characters")
    prepared = PreparedSpeech(config, 1)
    assert (len(prepared.splits.train), len(prepared.splits.validation)) == (120, 12)
    assert not prepared.splits.excluded
    assert set(prepared.splits.validation.table.values("speaker")) == {"3"}
    for batch in prepared.validation_batches():
        assert batch.weights.all() and not any(batch.problems)


def test_sentences_are_learnt(root: Path, tmp_path: Path) -> None:
    """Better on another voice than answering the commonest word."""
    run = tmp_path / "run"
    words = ["train", "transducer/tiny", "--data", str(root), "--out", str(run), *SMALL]
    assert main(words) == 0
    opened = load_run(run, "auto", {})
    found = opened.evaluate().metrics
    assert found["cer"] < opened.task.baseline()["cer"] and found["empty"] < 1
