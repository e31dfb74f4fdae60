"""Groups keep their budgets and are a function of the step; broken utterances weigh nothing."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from magneto.data.stream import BatchStream
from magneto.data.workers import BatchesAhead
from magneto.progress import SILENT
from magneto.speech.audio import NON_FINITE, SILENCE, TRUNCATED, UNREADABLE
from magneto.speech.batching import MIN_FRAMES, PreparedSpeech, SpeechBatch, cut_groups
from magneto.speech.config import AugmentationConfig, SpeechDataConfig, SyntheticConfig
from magneto.speech.features import Augmentation, SpeechFeatures
from tests.said import Said
from tests.unit.speech.wavs import tone, write

RANDOM = np.random.default_rng(0)


SYNTHETIC = SyntheticConfig(train_utterances=24, validation_utterances=7, words=(1, 2))


CONFIG = SpeechDataConfig(
    tokenizer="bytes", sample_rate=8000, max_duration=4.0, max_frames=500, synthetic=SYNTHETIC
)


@pytest.fixture(scope="module")
def prepared(module_cache: Path) -> PreparedSpeech:
    """Return utterances whose features are stored, so that many batches take little time."""
    return PreparedSpeech(replace(CONFIG, cached=True), 1, SILENT)


def flat(pieces: list[list[SpeechBatch]]) -> list[SpeechBatch]:
    return [batch for piece in pieces for batch in piece]


def equal(ours: list[SpeechBatch], theirs: list[SpeechBatch]) -> bool:
    return len(ours) == len(theirs) and all(
        one.ids == other.ids
        and torch.equal(one.features, other.features)
        and torch.equal(one.targets, other.targets)
        for one, other in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize(("max_frames", "max_cells"), [(20_000, 10**9), (20_000, 400_000)])
def test_groups_keep_their_budgets(max_frames: int, max_cells: int) -> None:
    frames = RANDOM.gamma(4, 200, 3000).astype(int) + 20
    labels = (frames * RANDOM.uniform(0.02, 0.08, 3000)).astype(int)
    lengths = np.stack([frames, labels], 1)
    groups = cut_groups(lengths, max_frames, max_cells, np.random.default_rng(1))
    assert sorted(np.concatenate(groups)) == list(range(3000))
    sizes = np.array([len(group) for group in groups])
    longest, most = (np.array([lengths[g, i].max() for g in groups]) for i in (0, 1))
    assert (sizes * longest <= max_frames).all()
    assert (sizes * longest * (most + 1) <= max_cells)[sizes > 1].all()
    used = frames.sum() / (sizes * longest).sum()
    cells = (frames * (labels + 1)).sum() / (sizes * longest * (most + 1)).sum()
    assert used > 0.93 and cells > 0.75
    assert (sizes * longest > 0.8 * max_frames).mean() > 0.8 or max_cells < 10**9


def test_a_batch(prepared: PreparedSpeech) -> None:
    maker, split = prepared.validation_maker, prepared.splits.validation
    batch = maker.evaluation_batch(np.arange(7))
    assert batch.features.dtype == torch.float32 and batch.targets.dtype == torch.int64
    for row in range(7):
        found = split.sound(row)
        features = prepared.normaliser(prepared.filter_bank(found.samples))
        length, labels = batch.feature_lengths[row], batch.target_lengths[row]
        assert np.array_equal(batch.features[row, :length].numpy(), features)
        assert not batch.features[row, length:].any() and not batch.targets[row, labels:].any()
        assert prepared.vocabulary.decode(batch.targets[row].tolist()) == split.texts[row]
        assert (batch.ids[row], batch.texts[row]) == (split.ids[row], split.texts[row])
        assert batch.problems[row] == ""
        assert length == len(features) == maker.lengths()[row, 0]
    assert batch.weights.tolist() == [1.0] * 7
    assert (
        batch.frames == batch.feature_lengths.sum() <= batch.cells == batch.features[..., 0].numel()
    )


def epoch_of(stream: BatchStream, count: int) -> list[SpeechBatch]:
    """Return the groups, one a step, that have so many utterances."""
    found: list[SpeechBatch] = []
    for pieces in stream.batches():
        found += flat(pieces)
        if sum(len(batch.ids) for batch in found) >= count:
            return found
    raise AssertionError


def test_an_epoch_has_every_utterance_once(prepared: PreparedSpeech) -> None:
    stream, every = prepared.train_stream(1, 1), sorted(prepared.splits.train.ids)
    two = [id for batch in epoch_of(stream, 48) for id in batch.ids]
    assert sorted(two[:24]) == sorted(two[24:]) == every and two[:24] != two[24:]
    other = [id for batch in epoch_of(prepared.train_stream(1, 2), 24) for id in batch.ids]
    assert other != two[:24]


def test_pieces_make_up_the_batch_and_other_cuts_change_nothing(prepared: PreparedSpeech) -> None:
    streams = [prepared.train_stream(4, 1) for _ in range(3)]
    for step in range(4):  # into the second epoch
        whole = flat(streams[0].batch(step))
        assert len(whole) == 4
        assert equal(flat(streams[1].batch(step, 4, [0, 1, 2, 3])), whole)
        assert equal(flat(streams[2].batch(step, 2, [1])), whole[2:])
    assert equal(flat(prepared.train_stream(4, 1).batch(3)), whole)
    names = ", ".join(id for batch in whole for id in batch.ids)
    assert streams[0].names(3, 1, [0]) == f"utterances {names}"


@pytest.mark.parametrize("count", [1, 3])
def test_workers_make_the_same(prepared: PreparedSpeech, count: int) -> None:
    stream = prepared.train_stream(2, 1)
    with closing(BatchesAhead(stream, 2, [0, 1], num_workers=count)) as ahead:
        for made, step in zip(ahead.start(), range(6), strict=False):
            assert equal(flat(made), flat(stream.batch(step, 2, [0, 1])))


def test_speed_changes_what_is_planned() -> None:
    pytest.importorskip("soxr", reason="soxr is not installed")
    varied = AugmentationConfig(speeds=(0.8, 1.0, 1.25))
    fast = PreparedSpeech(replace(CONFIG, augmentation=varied, max_frames=600), 1)
    stream = fast.train_stream(1, 1)
    plain = fast.train_maker.lengths()[:, 0]
    speeds = Augmentation(varied, CONFIG.sample_rate).speeds(24, 1, 0)
    for batch in epoch_of(stream, 24):
        assert batch.cells <= 600 or len(batch.ids) == 1
        for id, length in zip(batch.ids, batch.feature_lengths.tolist(), strict=True):
            speed = speeds[int(id.split("-")[1])]
            assert length == pytest.approx(plain[int(id.split("-")[1])] / speed, abs=2)


def broken(folder: Path) -> SpeechDataConfig:
    """Write recordings whose headers are in order, one of which is; for each split its own."""
    for name in ("train", "dev"):
        (folder / name).mkdir()
        lines = write_broken(folder / name)
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return SpeechDataConfig(source=str(folder), tokenizer="bytes", cmvn="utterance")


def write_broken(folder: Path) -> list[str]:
    """Write them in a folder; return the lines that name them."""
    import soundfile

    write(folder / "good.flac", seconds=2)
    content = write(folder / "cut.flac", seconds=20).read_bytes()
    (folder / "cut.flac").write_bytes(content[: len(content) // 2])
    content = write(folder / "bad.flac").read_bytes()
    (folder / "bad.flac").write_bytes(content[:100] + bytes(len(content) - 100))
    soundfile.write(folder / "silent.wav", np.zeros(16000), 16000)
    for name, value in (("nan", np.nan), ("huge", 1e30)):
        soundfile.write(folder / f"{name}.wav", tone() * value, 16000, subtype="FLOAT")
    names = ["good.flac", "cut.flac", "bad.flac", "silent.wav", "nan.wav", "huge.wav"]
    return [
        json.dumps({"id": name.split(".")[0], "audio": str(folder / name), "text": "hello"})
        for name in names
    ]


def test_broken_utterances_weigh_nothing_in_training(tmp_path: Path) -> None:
    pytest.importorskip("soundfile", reason="soundfile is not installed")
    prepared = PreparedSpeech(broken(tmp_path), 1)
    assert len(prepared.splits.train) == len(prepared.splits.validation) == 6
    stream = prepared.train_stream(1, 1)
    rows = {}
    for batch in epoch_of(stream, 6):
        assert torch.isfinite(batch.features).all()
        columns = torch.stack([batch.weights, batch.feature_lengths, batch.target_lengths], 1)
        for id, problem, numbers in zip(batch.ids, batch.problems, columns.tolist(), strict=True):
            rows[id] = (problem, *numbers)
    nothing = (0.0, MIN_FRAMES, 0)
    assert rows == {
        "good": ("", 1.0, 198, 5), "cut": (TRUNCATED, *nothing), "bad": (UNREADABLE, *nothing),
        "silent": (SILENCE, *nothing), "nan": (NON_FINITE, *nothing),
        "huge": (NON_FINITE, *nothing),
    }  # fmt: skip


def test_evaluation_keeps_what_can_be_read(tmp_path: Path) -> None:
    pytest.importorskip("soundfile", reason="soundfile is not installed")
    prepared = PreparedSpeech(broken(tmp_path), 1)
    batch = prepared.validation_maker.evaluation_batch(np.arange(6))
    assert batch.ids == ["good", "cut", "bad", "silent", "nan", "huge"]
    assert batch.weights.tolist() == [1, 1, 0, 1, 1, 0]
    assert batch.problems == ["", TRUNCATED, UNREADABLE, SILENCE, NON_FINITE, NON_FINITE]
    assert batch.texts == ["hello"] * 6
    assert torch.isfinite(batch.features).all() and 900 < batch.feature_lengths[1] < 1000


FEW = SyntheticConfig(train_utterances=12, validation_utterances=5, words=(1, 2))


PLAIN = SpeechDataConfig(
    tokenizer="characters", sample_rate=8000, max_duration=10.0, max_frames=1000,
    synthetic=FEW,
)  # fmt: skip


def test_global_means_are_those_of_the_training_split() -> None:
    prepared = PreparedSpeech(PLAIN, 1)
    train = prepared.splits.train
    found = [prepared.filter_bank(train.sound(n).samples) for n in range(len(train))]
    frames = prepared.normaliser(np.concatenate(found))
    assert np.allclose(frames.mean(0), 0, atol=1e-3) and np.allclose(frames.std(0), 1, atol=1e-3)


def test_means_are_of_these_recordings_and_not_of_others_as_long() -> None:
    loud, noisy = (
        PreparedSpeech(replace(PLAIN, synthetic=replace(FEW, snr=(snr, snr))), 1)
        for snr in (40.0, -5.0)
    )
    assert loud.splits.train.texts == noisy.splits.train.texts
    assert not np.allclose(loud.normaliser.mean, noisy.normaliser.mean, atol=0.1)


def test_what_a_run_keeps(tmp_path: Path) -> None:
    prepared, run = PreparedSpeech(PLAIN, 1), tmp_path / "run"
    run.mkdir()
    prepared.save(run)
    values = {"tokenizer": str(run / "tokenizer"), "cmvn": str(run / "cmvn.json")}
    other = PreparedSpeech(replace(PLAIN, **values, validation_source=PLAIN.source), 3)
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
        SpeechFeatures(PLAIN)


def test_cached_features_change_nothing() -> None:
    plain, cached = PreparedSpeech(PLAIN, 1), PreparedSpeech(replace(PLAIN, cached=True), 1)
    streams = [each.train_stream(2, 5) for each in (plain, cached)]
    for step in range(3):
        ((one, *_),), ((other, *_),) = (stream.batch(step) for stream in streams)
        assert one.ids == other.ids and torch.equal(one.features, other.features)


def test_slow_work_is_done_once_and_said() -> None:
    said = Said()
    PreparedSpeech(replace(PLAIN, cached=True), 5, said)
    assert said.work == {
        "reading headers of recordings", "computing features", "taking means of features",
    }  # fmt: skip
    assert "builtin:spoken-digits, train: 12 utterances, 12 read, 0.00 hours" in said.lines
    said.work.clear()
    PreparedSpeech(replace(PLAIN, cached=True), 5, said)
    assert not said.work
