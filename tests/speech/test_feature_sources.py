"""Stored features are the computed ones, bit by bit, and are computed once."""

from pathlib import Path

import numpy as np
import pytest

from magneto.progress import SILENT
from magneto.speech.config import SpeechDataConfig, SyntheticConfig
from magneto.speech.feature_sources import ComputedFeatures, StoredFeatures
from magneto.speech.features import FilterBank
from magneto.speech.headers import measure
from magneto.speech.synthetic import synthetic_rows


@pytest.fixture
def computed() -> ComputedFeatures:
    config = SpeechDataConfig(synthetic=SyntheticConfig(train_utterances=5), sample_rate=8000)
    rows = synthetic_rows("spoken-digits", config, 1, True)
    return ComputedFeatures(measure(rows, 8000, SILENT), FilterBank(config))


def test_stored_features(computed: ComputedFeatures, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = StoredFeatures(computed, SILENT)
    assert stored.frames().tolist() == computed.frames().tolist()
    for number in range(5):
        found, problem = stored.features(number)
        assert problem == "" and np.array_equal(found, computed.features(number)[0])
        found[:] = 0  # a copy, which may be changed
        assert stored.features(number)[0].any()
    monkeypatch.setattr(ComputedFeatures, "features", None)
    assert StoredFeatures(computed, SILENT).frames().sum() == stored.frames().sum()


def test_problems_are_stored_too(tmp_path: Path, computed: ComputedFeatures) -> None:
    rows = [*computed.utterances.rows[:1], *synthetic_none()]
    source = ComputedFeatures(measure(rows, 8000, SILENT), computed.filter_bank)
    stored = StoredFeatures(source, SILENT)
    assert [stored.features(n)[1] for n in (0, 1)] == ["", "missing recordings"]
    assert len(stored.features(1)[0]) == 0
    empty = ComputedFeatures(measure([], 8000, SILENT), computed.filter_bank)
    assert len(StoredFeatures(empty, SILENT).frames()) == 0


def synthetic_none() -> list:
    from magneto.speech.audio import AudioFile
    from magneto.speech.utterances import Row

    pytest.importorskip("soundfile", reason="soundfile is not installed")
    return [Row("none", AudioFile("none.wav"), "x")]


def test_frames_at_another_speed(computed: ComputedFeatures) -> None:
    plain, slow = computed.frames(), computed.frames(np.full(5, 0.5))
    assert np.abs(slow - 2 * plain).max() <= 4
