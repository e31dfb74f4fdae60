"""From recordings to batches, whole; what a run keeps builds the same again."""

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from magneto.speech import features
from magneto.speech.batching import PreparedSpeech
from magneto.speech.config import SpeechDataConfig, SyntheticConfig
from magneto.speech.features import SpeechFeatures
from magneto.speech.synthetic import DIGITS
from tests.said import Said
from tests.speech.test_sources import librispeech

SYNTHETIC = SyntheticConfig(train_utterances=12, validation_utterances=5, words=(1, 2))
CONFIG = SpeechDataConfig(
    tokenizer="characters", sample_rate=8000, max_duration=10.0, max_frames=1000,
    synthetic=SYNTHETIC,
)  # fmt: skip
FSDD = Path(__file__).parents[3] / "shared" / "data" / "speech" / "fsdd" / "fsdd_recordings.zip"


def test_global_means_are_those_of_the_training_split() -> None:
    prepared = PreparedSpeech(CONFIG, 1)
    train = prepared.splits.train
    found = [prepared.filter_bank(train.sound(n).samples) for n in range(len(train))]
    frames = prepared.normaliser(np.concatenate(found))
    assert np.allclose(frames.mean(0), 0, atol=1e-3) and np.allclose(frames.std(0), 1, atol=1e-3)


def test_means_are_of_these_recordings_and_not_of_others_as_long() -> None:
    loud, noisy = (
        PreparedSpeech(replace(CONFIG, synthetic=replace(SYNTHETIC, snr=(snr, snr))), 1)
        for snr in (40.0, -5.0)
    )
    assert loud.splits.train.texts == noisy.splits.train.texts
    assert not np.allclose(loud.normaliser.mean, noisy.normaliser.mean, atol=0.1)


def test_means_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = PreparedSpeech(CONFIG, 1).normaliser
    monkeypatch.setattr(features, "CMVN_UTTERANCES", 4)
    some = PreparedSpeech(CONFIG, 2).normaliser  # of another seed, and so another set
    assert 0 < some.frames < whole.frames


def test_validation_batches() -> None:
    prepared = PreparedSpeech(CONFIG, 1)
    batches, again = prepared.validation_batches(), PreparedSpeech(CONFIG, 7).validation_batches()
    ids = [id for batch in batches for id in batch.ids]
    assert sorted(ids) == [f"validation-{n}" for n in range(5)]
    assert [batch.ids for batch in again] == [batch.ids for batch in batches]
    assert torch.equal(batches[0].targets, batches[0].targets)
    assert torch.equal(batches[0].features, batches[0].features)


def test_what_a_run_keeps(tmp_path: Path) -> None:
    prepared, run = PreparedSpeech(CONFIG, 1), tmp_path / "run"
    run.mkdir()
    prepared.save(run)
    values = {"tokenizer": str(run / "tokenizer"), "cmvn": str(run / "cmvn.json")}
    other = PreparedSpeech(replace(CONFIG, **values, validation_source=CONFIG.source), 3)
    assert len(other.splits.train) == 0
    wanted, found = (sorted(each.validation_batches(), key=lambda batch: batch.ids)
                     for each in (prepared, other))  # fmt: skip
    ids = [sorted(id for batch in each for id in batch.ids) for each in (wanted, found)]
    assert ids[0] == ids[1]
    assert found[0].features.abs().sum() == wanted[0].features.abs().sum()
    assert other.vocabulary.size == prepared.vocabulary.size
    samples = prepared.splits.validation.sound(0).samples
    alone = SpeechFeatures(other.config)(samples)  # without any data
    assert np.array_equal(alone, prepared.normaliser(prepared.filter_bank(samples)))
    with pytest.raises(ValueError, match="global is of training data"):
        SpeechFeatures(CONFIG)


def test_cached_features_change_nothing() -> None:
    plain, cached = PreparedSpeech(CONFIG, 1), PreparedSpeech(replace(CONFIG, cached=True), 1)
    streams = [each.train_stream(2, 5) for each in (plain, cached)]
    for step in range(3):
        ((one, *_),), ((other, *_),) = (stream.batch(step) for stream in streams)
        assert one.ids == other.ids and torch.equal(one.features, other.features)


def test_slow_work_is_done_once_and_said() -> None:
    said = Said()
    PreparedSpeech(replace(CONFIG, cached=True), 1, said)
    assert said.work == {
        "reading headers of recordings", "computing features", "taking means of features",
    }  # fmt: skip
    assert "builtin:spoken-digits, train: 12 utterances, 12 read, 0.00 hours" in said.lines
    said.work.clear()
    PreparedSpeech(replace(CONFIG, cached=True), 1, said)
    assert not said.work


def test_librispeech_from_folders_to_batches(tmp_path: Path) -> None:
    pytest.importorskip("soundfile", reason="soundfile is not installed")
    root = librispeech(tmp_path / "LibriSpeech")
    config = SpeechDataConfig(source=str(root), tokenizer="characters", text_case="lower")
    prepared = PreparedSpeech(config, 1)
    assert (len(prepared.splits.train), len(prepared.splits.validation)) == (4, 2)
    (batch,) = prepared.train_stream(1, 1).batch(0)[0]
    assert sorted(batch.texts)[0] == "chapter 1 line 0"
    assert batch.features.shape == (4, 198, 80)
    assert batch.targets.shape == (4, len("chapter 198 line 0"))


def test_real_spoken_digits(tmp_path: Path) -> None:
    """Five people's digits: a speaker is held out, nothing is left out, no frame is odd."""
    pytest.importorskip("soundfile", reason="soundfile is not installed")
    if not FSDD.is_file():
        pytest.skip("the shared data is not there")
    names = list(DIGITS)
    lines = []
    with zipfile.ZipFile(FSDD) as archive:
        for path in archive.namelist():
            digit, speaker, take = Path(path).stem.split("_")
            if path.endswith(".wav") and int(take) < 2:
                (tmp_path / Path(path).name).write_bytes(archive.read(path))
                line = {"audio": Path(path).name, "text": names[int(digit)], "speaker": speaker}
                lines.append(json.dumps(line))
    (tmp_path / "digits.jsonl").write_text("\n".join(lines))
    config = replace(CONFIG, source=str(tmp_path / "digits.jsonl"), max_text_rate=100.0)
    prepared = PreparedSpeech(config, 1)
    assert (len(prepared.splits.train), len(prepared.splits.validation)) == (80, 20)
    assert len(set(prepared.splits.validation.table.values("speaker"))) == 1
    assert not prepared.splits.excluded
    for batch in prepared.validation_batches():
        assert batch.weights.all() and batch.features.abs().max() < 12
        assert set(batch.texts) <= set(names)


def test_bytes_of_a_recording_are_enough() -> None:
    """What `read_sound` takes from the hub it takes from any bytes."""
    soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed")
    from magneto.speech.audio import read_sound

    prepared = PreparedSpeech(CONFIG, 1)
    samples = prepared.splits.train.sound(0).samples
    file = io.BytesIO()
    soundfile.write(file, samples, 8000, format="WAV", subtype="FLOAT")
    assert np.array_equal(read_sound(file.getvalue(), 8000).samples, samples)
