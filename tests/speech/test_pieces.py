"""Long files and streams give the samples that reading them at once gives."""

import io

import numpy as np
import pytest

from magneto.speech import long_audio as pieces
from magneto.speech.audio import BLOCK, read_sound
from magneto.speech.long_audio import file_pieces, raw_pieces

soundfile = pytest.importorskip("soundfile")


def tone(rate: int, seconds: float) -> np.ndarray:
    times = np.arange(int(rate * seconds)) / rate
    return (0.4 * np.sin(2 * np.pi * 440 * times)).astype(np.float32)


@pytest.mark.parametrize(("rate", "channels", "ending"), [
    (8000, 1, "wav"), (8000, 2, "flac"), (11025, 2, "wav"), (16000, 1, "ogg"),
])  # fmt: skip
def test_a_file_in_pieces(rate, channels, ending, tmp_path, monkeypatch) -> None:
    if rate != 8000:
        pytest.importorskip("soxr")
    monkeypatch.setattr(pieces, "SECONDS", 0.3)
    path, told = tmp_path / f"a.{ending}", []
    soundfile.write(path, np.stack([tone(rate, 2.0)] * channels, 1), rate)
    found = np.concatenate(list(file_pieces(path, 8000, told.append)))
    whole = read_sound(str(path), 8000).samples
    assert not told and abs(len(found) - len(whole)) <= 1
    count = min(len(found), len(whole))
    np.testing.assert_allclose(found[:count], whole[:count], atol=2e-3)


def test_broken_files_are_told_of(tmp_path) -> None:
    (tmp_path / "a.wav").write_bytes(b"no sound")
    (tmp_path / "b.wav").write_bytes(b"")
    soundfile.write(tmp_path / "c.wav", np.zeros(0), 8000)
    for name, what in (("a", "unreadable"), ("b", "without samples"), ("c", "without samples")):
        told: list[str] = []
        assert sum(map(len, file_pieces(tmp_path / f"{name}.wav", 8000, told.append))) == 0
        assert len(told) == 1 and what in told[0]


def test_odd_headers_and_damage_are_as_when_all_is_read_at_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(pieces, "SECONDS", 1.5)
    soundfile.write(tmp_path / "a.wav", tone(8000, 2.0), 8000, subtype="PCM_16")
    content = bytearray((tmp_path / "a.wav").read_bytes())
    # A sample rate that would make days of three seconds.
    (tmp_path / "slow.wav").write_bytes(content[:24] + b"\3\0\0\0" + content[28:])
    noise = 0.3 * np.random.default_rng(0).standard_normal(8000 * 5)
    soundfile.write(tmp_path / "whole.flac", noise, 8000)
    whole = (tmp_path / "whole.flac").read_bytes()
    (tmp_path / "cut.flac").write_bytes(whole[: len(whole) // 2])
    for name, least, said in (
        ("slow.wav", 0, ["unreadable recordings"]),
        ("cut.flac", 15000, ["damaged from here on"]),
    ):
        told: list[str] = []
        parts = list(file_pieces(tmp_path / name, 8000, told.append))
        found = np.concatenate([np.zeros(0, np.float32), *parts])
        assert told == said and len(found) >= least
        whole = read_sound(str(tmp_path / name), 8000).samples
        count = min(len(whole), len(found))
        assert max(len(whole), len(found)) - count <= BLOCK  # by which damage is approached
        np.testing.assert_array_equal(found[:count], whole[:count])


class Slow(io.BytesIO):
    """A stream that gives odd numbers of bytes."""

    def read1(self, size: int | None = -1) -> bytes:
        return self.read(7)


def test_raw_sound() -> None:
    values = np.arange(-500, 500, dtype=np.int16)
    found = np.concatenate(list(raw_pieces(Slow(values.tobytes() + b"x"), 8000, 8000)))
    np.testing.assert_array_equal(found, values / np.float32(32768))


def test_raw_sound_at_another_rate() -> None:
    pytest.importorskip("soxr")
    sound = (tone(16000, 1.0) * 32767).astype("<i2")
    found = np.concatenate(list(raw_pieces(io.BytesIO(sound.tobytes()), 16000, 8000)))
    assert len(found) == 8000
    np.testing.assert_allclose(found[100:-100], tone(8000, 1.0)[100:-100], atol=2e-3)
