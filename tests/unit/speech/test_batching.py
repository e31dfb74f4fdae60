"""Blank is 0 with any tokenizer; groups keep their budgets; broken utterances weigh nothing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from magneto.data.stream import BatchStream
from magneto.progress import SILENT
from magneto.speech.audio import NON_FINITE, SILENCE, TRUNCATED, UNREADABLE
from magneto.speech.batching import (
    MIN_FRAMES,
    PreparedSpeech,
    SpeechBatch,
    SpeechVocabulary,
    build_vocabulary,
)
from magneto.speech.config import (
    AugmentationConfig,
    FilterBankConfig,
    SpeechDataConfig,
    SyntheticConfig,
)
from magneto.speech.features import Augmentation, Features, FilterBank
from tests.recorded_progress import RecordedProgress
from tests.shards import write_lines
from tests.unit.speech.small import DATA, FEW
from tests.unit.speech.wavs import tone, write

TEXTS = [f"number {n} of {n * 7} it's said" for n in range(300)]
SIZES = {"characters": 0, "bpe": 300, "sentencepiece": 300, "bytes": 0}


def made(tokenizer: str, texts: list[str] = TEXTS) -> SpeechVocabulary:
    size = SIZES.get(tokenizer) or 5000
    return build_vocabulary(SpeechDataConfig(tokenizer=tokenizer, vocab_size=size), texts)


@pytest.mark.parametrize("tokenizer", SIZES)
def test_texts_come_back(tmp_path: Path, tokenizer: str) -> None:
    pytest.importorskip("tokenizers" if tokenizer != "sentencepiece" else tokenizer)
    vocabulary = made(tokenizer)
    assert vocabulary.size == 1 + (SIZES[tokenizer] or vocabulary.tokenizer.vocab_size)
    labels = vocabulary.encode(TEXTS)
    assert min(each.min() for each in labels) > 0
    assert max(each.max() for each in labels) < vocabulary.size == len(vocabulary.pieces())
    assert [vocabulary.decode(each.tolist()) for each in labels] == TEXTS
    with_blanks = [label for pair in zip(labels[5], [0] * 99, strict=False) for label in pair]
    assert vocabulary.decode(with_blanks) == TEXTS[5]
    vocabulary.tokenizer.save(tmp_path)
    again = build_vocabulary(SpeechDataConfig(tokenizer=str(tmp_path)), [])
    assert again.encode(TEXTS[:9])[8].tolist() == labels[8].tolist()


def test_characters_are_learnt() -> None:
    vocabulary = made("characters", ["ba", "a c"])
    assert vocabulary.pieces()[3:] == [" ", "a", "b", "c"]
    assert vocabulary.decode(vocabulary.encode(["abXc\n"])[0].tolist()) == "abc"
    with pytest.raises(FileNotFoundError, match="no tokenizer wordpiece"):
        made("wordpiece")
    # Another vocabulary for other texts, another size or another tokenizer.
    options = (
        ("bpe", 300, TEXTS),
        ("bpe", 280, TEXTS),
        ("characters", 300, TEXTS),
        ("bpe", 300, ["a"] * 9),
    )
    sizes = [
        build_vocabulary(SpeechDataConfig(tokenizer=name, vocab_size=size), texts).size
        for name, size, texts in options
    ]
    assert sizes == [301, 281, 28, 258]


SYNTHETIC = SyntheticConfig(train_utterances=24, validation_utterances=7, words=(1, 2))
CONFIG = SpeechDataConfig(
    tokenizer="bytes", sample_rate=8000, max_duration=4.0, max_frames=500, synthetic=SYNTHETIC,
    block=13,
)  # fmt: skip


@pytest.fixture(scope="module")
def prepared(module_cache: Path) -> PreparedSpeech:
    """Return utterances whose features are stored, so that many batches take little time."""
    return PreparedSpeech(replace(CONFIG, cached=True), 1, SILENT)


def test_a_batch(prepared: PreparedSpeech) -> None:
    maker, split = prepared.validation_maker, prepared.splits.validation
    batch = maker.batch(np.arange(7), maker.source.normalised)
    assert batch.features.dtype == torch.float32 and batch.targets.dtype == torch.int64
    for row in range(7):
        found = maker.source.sound(row)
        features = prepared.normaliser(prepared.filter_bank(found.samples))
        length, labels = batch.feature_lengths[row], batch.target_lengths[row]
        assert np.array_equal(batch.features[row, :length].numpy(), features)
        assert not batch.features[row, length:].any() and not batch.targets[row, labels:].any()
        assert prepared.vocabulary.decode(batch.targets[row].tolist()) == split[row]["text"]
        assert (batch.ids[row], batch.texts[row]) == (split[row]["id"], split[row]["text"])
        assert batch.problems[row] == ""
        assert length == len(features) == maker.source.frames()[row]
    assert batch.weights.tolist() == [1.0] * 7
    part = Features(split.take(np.array([4, 2])), prepared.filter_bank, SILENT, np.asarray)
    assert np.array_equal(part.sound(0).samples, maker.source.sound(4).samples)
    assert (
        batch.frames == batch.feature_lengths.sum() <= batch.cells == batch.features[..., 0].numel()
    )


def test_groups_keep_the_limit_of_cells(prepared: PreparedSpeech) -> None:
    maker = prepared.train_maker
    frames, labels = maker.source.frames(), np.array([len(each) for each in maker.labels])
    for limit in range(4000, 30_000, 2000):
        config = replace(CONFIG, max_cells=limit, max_frames=10_000)
        groups = maker.groups(np.arange(24), config, np.random.default_rng(0))
        assert sorted(np.concatenate(groups).tolist()) == [*range(24)]
        cells = [len(g) * frames[g].max() * (labels[g].max() + 1) for g in groups if len(g) > 1]
        assert limit / 2 < max(cells, default=limit) <= limit


def epoch_of(stream: BatchStream, count: int) -> list[SpeechBatch]:
    """Return the groups, one a step, that have so many utterances."""
    found: list[SpeechBatch] = []
    for (groups,) in stream.batches():
        found += groups
        if sum(len(batch.ids) for batch in found) >= count:
            return found
    raise AssertionError


def test_an_epoch_has_every_utterance_once(
    prepared: PreparedSpeech, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks, whose groups are mixed; each utterance is varied by its own integers."""
    drawn: list[tuple[int, ...]] = []
    monkeypatch.setattr(Augmentation, "features",
                        lambda self, features, seed: drawn.append(seed) or features)  # fmt: skip
    stream, every = prepared.train_stream(1, 1), sorted(prepared.splits.train.values("id"))
    groups = epoch_of(stream, 48)
    two = [id for batch in groups for id in batch.ids]
    assert sorted(two[:24]) == sorted(two[24:]) == every and two[:24] != two[24:]
    assert {*drawn} == {(1, epoch, number) for epoch in (0, 1) for number in range(24)}
    lengths = [batch.features.shape[1] for batch in groups]
    assert (np.diff(lengths) < 0).sum() > 4  # of two epochs of two blocks, each by length
    other = [id for batch in epoch_of(prepared.train_stream(1, 2), 24) for id in batch.ids]
    assert other != two[:24]
    assert all(batch.cells <= CONFIG.max_frames for batch in groups if len(batch.ids) > 1)
    assert sum(b.frames for b in groups) / sum(b.cells for b in groups) > 0.8


def test_speed_changes_what_is_planned() -> None:
    pytest.importorskip("soxr", reason="soxr is not installed")
    varied = AugmentationConfig(speeds=(0.8, 1.0, 1.25))
    fast = PreparedSpeech(replace(CONFIG, augmentation=varied, max_frames=600), 1)
    plain = fast.train_maker.source.frames()
    speeds = [Augmentation(varied, CONFIG.sample_rate).speeds(24, 1, epoch) for epoch in (0, 1)]
    read: list[int] = []
    for batch in epoch_of(fast.train_stream(1, 1), 48):
        assert batch.cells <= 600 or len(batch.ids) == 1
        for id, length in zip(batch.ids, batch.feature_lengths.tolist(), strict=True):
            number = int(id.split("-")[1])
            its = speeds[number in read][number]
            assert length == pytest.approx(plain[number] / its, abs=2)
            read.append(number)


def test_every_epoch_augments_an_utterance_otherwise() -> None:
    none = AugmentationConfig(frequency_masks=0, time_masks=0)
    for changes in ({}, {"frequency_masks": 2}, {"noise": 1}):  # of features, and of the sound
        config = replace(DATA, augmentation=replace(none, **changes))
        seen: dict[str, list[np.ndarray]] = {}
        for batch in epoch_of(PreparedSpeech(config, 1).train_stream(1, 1), 24):
            for row, id in enumerate(batch.ids):
                features = batch.features[row, : batch.feature_lengths[row]].numpy()
                seen.setdefault(id, []).append(features)
        same = [np.array_equal(*both) for both in seen.values()]
        assert len(same) == 12 and (sum(same) < 3 if changes else all(same)), changes


def broken(folder: Path) -> SpeechDataConfig:
    """Write recordings whose headers are in order, one of which is; for each split its own."""
    import soundfile

    names = ["good.flac", "cut.flac", "bad.flac", "silent.wav", "nan.wav", "huge.wav"]
    for split in ("train", "dev"):
        place = folder / split
        write(place / "good.flac", seconds=2)
        content = write(place / "cut.flac", seconds=20).read_bytes()
        (place / "cut.flac").write_bytes(content[: len(content) // 2])
        content = write(place / "bad.flac").read_bytes()
        (place / "bad.flac").write_bytes(content[:100] + bytes(len(content) - 100))
        write(place / "silent.wav", quiet=True)
        for name, value in (("nan", np.nan), ("huge", 1e30)):
            samples = tone()
            samples[8000:] *= value
            soundfile.write(place / f"{name}.wav", samples, 16000, subtype="FLOAT")
        lines = ({"id": name.split(".")[0], "audio": f"{split}/{name}", "text": "hello"}
                 for name in names)  # fmt: skip
        write_lines(folder / f"{split}.jsonl", lines)
    return SpeechDataConfig(source=str(folder), tokenizer="bytes", cmvn="utterance")


def test_broken_utterances_weigh_nothing_in_training_and_stay_in_evaluation(tmp_path: Path) -> None:
    pytest.importorskip("soundfile", reason="soundfile is not installed")
    prepared = PreparedSpeech(broken(tmp_path), 1)
    assert len(prepared.splits.train) == len(prepared.splits.validation) == 6
    rows = {}
    for batch in epoch_of(prepared.train_stream(1, 1), 6):
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
    given: Any = PreparedSpeech(replace(broken(tmp_path), cmvn="global"), 1)
    good = given.train_maker.source.features(0)[0]  # of no other are the means
    np.testing.assert_allclose(given.normaliser.mean, good.mean(0), rtol=1e-4)
    for each in (prepared, given):
        maker = each.validation_maker
        batch = maker.batch(np.arange(6), maker.source.normalised)
        assert batch.ids == ["good", "cut", "bad", "silent", "nan", "huge"]
        assert batch.weights.tolist() == [1, 1, 0, 1, 1, 0]
        assert batch.problems == ["", TRUNCATED, UNREADABLE, SILENCE, NON_FINITE, NON_FINITE]
        assert batch.texts == ["hello"] * 6
        assert torch.isfinite(batch.features).all() and 900 < batch.feature_lengths[1] < 1000


def test_global_means_are_those_of_the_training_split() -> None:
    """And of these recordings, not of others as long."""
    prepared = PreparedSpeech(DATA, 1)
    train = prepared.train_maker.source
    found = [train.features(n)[0] for n in range(len(train.table))]
    frames = prepared.normaliser(np.concatenate(found))
    assert np.allclose(frames.mean(0), 0, atol=1e-3) and np.allclose(frames.std(0), 1, atol=1e-3)
    noisy = PreparedSpeech(replace(DATA, synthetic=replace(FEW, snr=(-5.0, -5.0))), 1)
    assert train.table.values("text") == noisy.splits.train.values("text")
    normalisers: Any = [prepared.normaliser, noisy.normaliser]
    assert not np.allclose(*(each.mean for each in normalisers), atol=0.1)


def test_cached_features_change_nothing_and_slow_work_is_done_once() -> None:
    plain, progress = PreparedSpeech(DATA, 1), RecordedProgress()
    cached = PreparedSpeech(replace(DATA, cached=True), 1, progress)
    for step in range(3):
        both = (each.train_stream(2, 5).batch(step)[0] for each in (plain, cached))
        for one, other in zip(*both, strict=True):
            assert one.ids == other.ids and torch.equal(one.features, other.features)
    assert "computing features" in progress.work
    assert "builtin:spoken-digits, train: 12 utterances, 12 read, 0.00 hours" in progress.lines
    progress.work.clear()
    PreparedSpeech(replace(DATA, cached=True), 1, progress)
    assert not progress.work
    table = plain.train_maker.source.table
    others = ({}, {"sample_rate": 7000}, {"features": FilterBankConfig(mel_bins=40)})
    made = [Features(table, FilterBank(replace(DATA, **each)), SILENT, np.asarray)
            for each in others]  # fmt: skip
    made.append(Features(table.take(np.arange(5)), FilterBank(DATA), SILENT, np.asarray))
    assert len({each.fingerprint for each in made}) == 4
