"""Sound of every format, frames of any length, their normalisation, what is varied."""

import io
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from magneto.data.formats import BEGINNINGS
from magneto.speech import audio
from magneto.speech.config import AugmentationConfig, SpeechDataConfig
from magneto.speech.features import (
    Augmentation,
    FilterBank,
    Normaliser,
    load_normaliser,
    normalise_utterance,
    stored_normaliser,
    time_warp,
)
from tests.unit.speech.wavs import tone, write

soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed")

TONE = tone()


def read(path: Path, start: float = 0.0, stop: float | None = None) -> tuple[np.ndarray, str]:
    found = audio.read_sound(str(path), 16000, audio.Segment(start, stop))
    assert found.samples.dtype == np.float32 and np.isfinite(found.samples).all()
    return found.samples, found.problem


@pytest.mark.parametrize(
    ("ending", "subtype", "error"),
    [
        ("wav", "PCM_U8", 0.01), ("wav", "PCM_16", 1e-4), ("wav", "DOUBLE", 0),
        ("wav", "ULAW", 0.03), ("flac", "PCM_24", 1e-6), ("ogg", "VORBIS", 0.1),
        ("aiff", "PCM_16", 1e-4), ("mp3", "MPEG_LAYER_III", 0.1),
    ],
)  # fmt: skip
def test_formats(
    tmp_path: Path, ending: str, subtype: str, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any sample rate, also in pieces. A recording is known by its first bytes."""
    pytest.importorskip("soxr", reason="soxr is not installed")
    monkeypatch.setattr(audio, "SECONDS", 0.3)
    for rate in (8000, 11025, 44100):
        path, problems = write(tmp_path / f"a.{ending}", sample_rate=rate, subtype=subtype), []
        samples, problem = read(path)
        assert problem == "" and abs(len(samples) - 16000) <= 1
        assert np.abs(samples[500:15500] - TONE[500:15500]).max() < error + 0.01
        parts = list(audio.sound_pieces(path, 16000, problems.append))
        assert len(parts) == 5  # four of at most 0.3 s, and what is left in the resampler
        pieces = np.concatenate(parts)
        assert not problems and abs(len(pieces) - len(samples)) <= 1
        np.testing.assert_allclose(pieces[:15990], samples[:15990], atol=2e-3)
        assert BEGINNINGS["Audio"].match(path.read_bytes())
    path = write(path, subtype=subtype)
    samples, problem = read(path)
    assert problem == "" and len(samples) == len(TONE)
    assert np.abs(samples - TONE)[400:-400].max() <= error
    assert audio.header_seconds(str(path)) == (1.0, "")
    assert audio.read_sound(path.read_bytes(), 16000).samples.tolist() == samples.tolist()
    assert BEGINNINGS["Audio"].match(path.read_bytes())


def test_channels(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.stack([TONE, TONE / 2], 1), 16000, subtype="FLOAT")
    path = str(tmp_path / "a.wav")
    for samples in (
        audio.read_sound(path, 16000).samples,
        *audio.sound_pieces(Path(path), 16000, print),
    ):
        assert len(samples) == 0 or np.allclose(samples, 0.75 * TONE)
    assert np.allclose(audio.read_sound(path, 16000, audio.Segment(channel=1)).samples, TONE / 2)
    for none in (audio.Segment(channel=2), audio.Segment(channel=-1)):
        assert audio.header_seconds(path, none) == (0.0, audio.NO_CHANNEL)
        sound = audio.read_sound(path, 16000, none)
        assert (len(sound.samples), sound.problem) == (0, audio.NO_CHANNEL)


@pytest.mark.parametrize("ending", ["wav", "flac", "ogg", "mp3", "aiff"])
def test_a_segment_is_a_piece_of_the_whole(tmp_path: Path, ending: str) -> None:
    """Also where seeking is not exact, as in .mp3."""
    chirp = np.sin(2 * np.pi * 300 * np.arange(64000) ** 2 / 16000 / 16000) / 2
    soundfile.write(tmp_path / f"a.{ending}", chirp, 16000)
    whole = read(tmp_path / f"a.{ending}")[0]
    assert np.abs(whole[800:-800] - chirp[800:-800]).max() < 0.2
    path = str(tmp_path / f"a.{ending}")
    assert read(Path(path), 2.5, 5.0)[1] == audio.TRUNCATED
    assert audio.header_seconds(path, audio.Segment(2.5, 5.0)) == (
        pytest.approx(1.5, abs=0.1),
        audio.TRUNCATED,
    )
    for start, stop in ((5.0, 6.0), (0.5, 0.2)):
        assert read(Path(path), start, stop)[1] == audio.NO_SAMPLES
        assert audio.header_seconds(path, audio.Segment(start, stop)) == (0.0, audio.NO_SAMPLES)
    for start, stop in ((0.0, 1.0), (0.7, 1.3), (2.5, 4.0)):
        samples, problem = read(tmp_path / f"a.{ending}", start, stop)
        piece = whole[int(start * 16000) : int(stop * 16000)]
        assert problem == "" and len(samples) == len(piece)
        assert np.abs(samples - piece).max() < 1e-3


@pytest.mark.parametrize("ending", ["wav", "flac", "ogg", "mp3"])
def test_truncated(tmp_path: Path, ending: str) -> None:
    """What is there is read, and said to be less than there should be."""
    path = write(tmp_path / f"a.{ending}", seconds=20)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    samples, problem = read(path)
    assert problem == audio.TRUNCATED
    assert 3 * 16000 < len(samples) < 16 * 16000
    assert np.abs(samples[1000:40000]).max() == pytest.approx(0.5, abs=0.1)
    if ending == "ogg":  # in the last page, and in its header
        for cut in (1, len(content) - content.rfind(b"OggS") - 8):
            path.write_bytes(content[:-cut])
            assert audio.header_seconds(str(path))[1] == audio.TRUNCATED


def with_length(path: Path, length: int) -> Path:
    """Let a .wav's header say that there are so many bytes."""
    content = path.read_bytes()
    place = content.index(b"data") + 4
    path.write_bytes(content[:place] + struct.pack("<I", length) + content[place + 4 :])
    return path


def test_a_header_with_another_length(tmp_path: Path) -> None:
    """Who writes a .wav to a pipe can't go back to say how long it has become: it is read whole."""
    path = write(tmp_path / "a.wav")
    whole = read(path)[0].tolist()
    for length in (0xFFFFFFFF, 0xFFFFFFFF - 36, 0x80000000, 0x7FFFF000):
        assert audio.header_seconds(str(with_length(path, length))) == (1.0, "")
        samples, problem = read(path)
        assert problem == "" and samples.tolist() == whole
    for length, problem in (
        (35000, ""),
        (35400, audio.TRUNCATED),
    ):  # 0.09 and 0.11 seconds are missing
        assert read(with_length(path, length))[1] == problem
    with_length(path, 64000)
    assert read(path)[1] == audio.header_seconds(str(path))[1] == audio.TRUNCATED
    assert len(read(path)[0]) == 16000
    samples, problem = read(with_length(path, 1000))
    assert (len(samples), problem) == (500, "")
    assert read(with_length(write(path, quiet=True), 64000))[1] == audio.TRUNCATED
    # An odd number of bytes is filled up to an even one.
    odd = struct.pack("<4sI4s4sI4s", b"RIFF", 0, b"WAVE", b"LIST", 3, b"abc\0")
    odd += struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 2, 5, 20, 4, 16)  # 20 bytes per second
    odd += struct.pack("<4sI", b"data", 100) + bytes(40)
    assert audio.missing_wav_seconds(io.BytesIO(odd)) == 3
    assert audio.missing_wav_seconds(io.BytesIO(b"FORM" + odd[4:])) == 0


def test_a_flac_from_a_pipe_has_no_length(tmp_path: Path) -> None:
    path = write(tmp_path / "a.flac", seconds=2)
    whole, known = read(path)[0].tolist(), path.read_bytes()
    content = known[:21] + bytes([known[21] & 0xF0, 0, 0, 0, 0]) + known[26:]  # 36 bits
    path.write_bytes(content)
    assert audio.header_seconds(str(path)) == (2.0, "")
    assert (read(path)[0].tolist(), read(path)[1]) == (whole, "")
    assert read(path, 1.5, 3.0)[0].tolist() == whole[24000:]
    assert [*np.concatenate([*audio.sound_pieces(path, 16000, pytest.fail)])] == whole
    half = len(known) // 2
    lost = b"\xff" * 99 + known[half + 99 :]
    for damaged in (content[:half], content[:half] + lost, known[:half] + lost):
        sound = audio.read_sound(damaged, 16000)
        assert sound.problem == audio.TRUNCATED and 8000 < len(sound.samples) < 24000
        assert sound.samples.tolist() == whole[: len(sound.samples)]
    assert audio.read_sound(content[:42], 16000).problem == audio.NO_SAMPLES


def test_missing_samples_are_measured_in_seconds_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("soxr", reason="soxr is not installed")
    path = write(tmp_path / "a.flac", sample_rate=8000)
    for missing, problem in ((1000, audio.TRUNCATED), (700, "")):  # of 8000 samples
        block = np.ones((8000 - missing, 1), np.float32)
        monkeypatch.setattr(audio, "read_blocks", lambda *given, block=block: iter([block]))
        samples, found = read(path)
        assert (len(samples), found) == (2 * len(block), problem)


class Fragile:
    """A file that can be read in small blocks only."""

    place, size = 0, 10_000

    def seek(self, place: int) -> None:
        self.place = place

    def read(self, count: int, **options) -> np.ndarray:
        if count > audio.BLOCK:
            raise RuntimeError
        start, self.place = self.place, min(self.place + count, self.size)
        return np.arange(start, self.place)[:, None]


def test_damage_is_told_after_the_last_block_that_can_be_read() -> None:
    found: list[int] = []
    with pytest.raises(audio.AudioError):
        for block in audio.read_blocks(Fragile(), 100, 50_000):
            found += block[:, 0].tolist()
    assert found == [*range(100, 10_000)]
    assert [len(block) for block in audio.read_blocks(Fragile(), 100, 64, 150)] == [64, 64, 22]


def test_what_is_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    whole = write(path).read_bytes()
    flac = write(tmp_path / "a.flac").read_bytes()
    wrong = {
        b"": audio.NO_SAMPLES,
        bytes(range(256)) * 9: audio.UNREADABLE,
        b"RIFF": audio.UNREADABLE,
    }
    # Then a sample rate that would make days of a second.
    wrong |= {whole[:44]: audio.NO_SAMPLES, whole[:24] + b"\3\0\0\0" + whole[28:]: audio.UNREADABLE}
    # And a number of samples that no file of this size can have.
    wrong |= {flac[:22] + b"\xff" * 4 + flac[26:]: audio.UNREADABLE}
    for content, problem in wrong.items():
        path.write_bytes(content)
        problems: list[str] = []
        assert not any(map(len, audio.sound_pieces(path, 16000, problems.append))) and problems == [
            problem
        ]
        assert read(path)[1] == problem and len(read(path)[0]) == 0
        assert audio.header_seconds(str(path)) == (0.0, problem)
        assert audio.read_sound(content, 16000).problem == problem
    none = tmp_path / "none.wav"
    assert read(none)[1] == audio.header_seconds(str(none))[1] == read(tmp_path)[1] == audio.MISSING


@pytest.mark.parametrize("library", ["soundfile", "soxr"])
def test_a_missing_library_is_no_problem_of_a_recording(
    tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.wav")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ModuleNotFoundError, match="speech"):
        audio.read_sound(str(path), 8000)
    with pytest.raises(ModuleNotFoundError, match="speech"):
        list(audio.sound_pieces(path, 8000, pytest.fail))
    if library == "soundfile":
        with pytest.raises(ModuleNotFoundError, match="speech"):
            audio.header_seconds(str(path))


def test_silence_and_non_finite_samples(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, 0 * TONE, 16000)
    assert read(path)[1] == audio.SILENCE
    soundfile.write(path, -np.abs(TONE) * 2.0**-14, 16000)  # a step of 16 bits
    assert read(path)[1] == ""
    broken = TONE.copy()
    broken[[5, 100]] = np.inf, np.nan
    soundfile.write(path, broken, 16000, subtype="FLOAT")
    samples, problem = read(path)
    assert problem == audio.NON_FINITE and len(samples) == 16000 and samples[5] == samples[100] == 0
    assert audio.read_sound(str(path), 8000).problem == audio.NON_FINITE


@pytest.mark.parametrize("ending", ["wav", "flac", "ogg", "mp3"])
def test_no_damage_raises(tmp_path: Path, ending: str, capfd: pytest.CaptureFixture) -> None:
    """Bytes are overwritten anywhere, the header included, and the file is cut anywhere."""
    content = write(tmp_path / f"a.{ending}", seconds=2).read_bytes()
    random = np.random.default_rng(0)
    problems = set()
    for _ in range(60):
        damaged = bytearray(content[: random.integers(1, len(content) + 1)])
        for place in random.integers(min(len(damaged), 200), size=random.integers(0, 6)):
            damaged[place] = random.integers(256)
        sound = audio.read_sound(bytes(damaged), 16000)
        audio.header_seconds(bytes(damaged))
        problems.add(sound.problem)
        assert np.isfinite(sound.samples).all()
    assert len(problems) > 1


RANDOM = np.random.default_rng(0)
FEATURES = RANDOM.standard_normal((500, 80)).astype(np.float32)


def test_short_and_long_sounds() -> None:
    bank = FilterBank(SpeechDataConfig())
    assert bank(np.zeros(0, np.float32)).shape == bank(np.zeros(399, np.float32)).shape == (0, 80)
    assert bank(np.zeros(400, np.float32)).shape == (1, 80)
    assert [bank.frames(n) for n in (0, 399, 400, 560)] == [0, 0, 1, 2]
    long = RANDOM.standard_normal(160 * 4500).astype(np.float32)  # in more than one chunk
    # Some processors multiply matrices of other heights in another order.
    alone = bank(long[160 * 2100 : 160 * 2109 + 400])
    np.testing.assert_allclose(bank(long)[2100:2110], alone, rtol=1e-5, atol=1e-5)


def test_normalisers(tmp_path: Path) -> None:
    frames = 5 + 3 * FEATURES[:50]
    found = normalise_utterance(frames)
    assert np.allclose(found.mean(0), 0, atol=1e-5) and np.allclose(found.std(0), 1, atol=1e-5)
    assert np.isfinite(normalise_utterance(np.ones((5, 4), np.float32))).all()
    assert normalise_utterance(frames[:0]).shape == (0, 80)
    for kind, expected in (("utterance", found), ("none", frames)):
        assert np.array_equal(stored_normaliser(SpeechDataConfig(cmvn=kind))(frames), expected)
    path = tmp_path / "cmvn.json"
    made = Normaliser(frames.mean(0), frames.std(0))
    made.save(path)
    assert np.array_equal(load_normaliser(path, 80)(frames), made(frames))
    with pytest.raises(ValueError, match=r"must have 4[0-9]* means"):
        load_normaliser(path, 4)
    path.write_text(f'{{"mean": {[0] * 80}, "deviation": {[1] * 79 + [0]}}}')
    with pytest.raises(ValueError):
        load_normaliser(path, 80)
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"is not a run's cmvn.json"):
        load_normaliser(path, 80)
    with pytest.raises(FileNotFoundError, match='"global", "utterance", "none"'):
        load_normaliser(tmp_path / "other.json", 80)


def made(**options) -> Augmentation:
    none = {"frequency_masks": 0, "time_masks": 0}
    return Augmentation(AugmentationConfig(**{**none, **options}), 16000)


def runs(flags: np.ndarray) -> int:
    """Return how many runs of True there are."""
    return int((np.diff(np.concatenate([[0], flags.astype(int)])) > 0).sum())


def test_the_papers_masks() -> None:
    """Two of frequency with at most 27 bins each, ten of time with at most 4 % of the frames."""
    paper = Augmentation(AugmentationConfig(), 16000)
    most_bins = most_frames = 0
    for number in range(200):
        changed = paper.features(FEATURES, (1, 0, number)) != FEATURES
        frames, bins = changed.all(1), changed.all(0)
        assert runs(bins) <= 2 and bins.sum() <= 2 * 27
        assert runs(frames) <= 10 and frames.sum() <= 10 * 20
        most_bins, most_frames = max(most_bins, bins.sum()), max(most_frames, frames.sum())
    assert most_bins > 40 and most_frames > 110  # the limits are approached
    shifted = FEATURES + 3
    found = paper.features(shifted, (1, 2, 3))
    assert np.allclose(found[found != shifted], shifted.mean())
    sized = made(time_masks=10, time_masks_ratio=0.01)
    assert [sized.time_masks(frames) for frames in (99, 500, 5000)] == [0, 5, 10]
    warped = Augmentation(AugmentationConfig(time_warp=5), 16000)
    for shape in ((1, 80), (8, 4), (0, 80), (11, 1)):
        assert warped.features(np.ones(shape, np.float32), (1, 0, 0)).shape == shape


def test_what_is_drawn_depends_on_its_integers_alone() -> None:
    config = AugmentationConfig(gain=6, noise=0.5, time_warp=5, speeds=(0.9, 1.0, 1.1))
    one, other = Augmentation(config, 16000), Augmentation(config, 16000)
    other.features(FEATURES, (9, 9, 9))
    other.sound(tone(), 1.0, (9, 9, 9))
    its = (1, 2, 3)
    assert np.array_equal(one.features(FEATURES, its), other.features(FEATURES, its))
    assert np.array_equal(one.sound(tone(), 1.0, its), other.sound(tone(), 1.0, its))
    assert np.array_equal(one.speeds(50, 1, 2), other.speeds(50, 1, 2))
    assert not np.array_equal(one.speeds(50, 1, 2), one.speeds(50, 1, 3))
    for seed in ((2, 2, 3), (1, 3, 3), (1, 2, 4)):
        assert not np.array_equal(one.features(FEATURES, its), one.features(FEATURES, seed))


def test_time_warp_moves_and_keeps_ends() -> None:
    ramp = np.arange(100, dtype=np.float32)[:, None]
    moved = [time_warp(ramp, 5, np.random.default_rng(seed))[:, 0] for seed in range(50)]
    for each in moved:
        assert each[0] == 0 and each[-1] == 99 and (np.diff(each) > 0).all()
        assert np.abs(each - ramp[:, 0]).max() <= 5
    assert max(np.abs(each - ramp[:, 0]).max() for each in moved) > 3
    assert np.array_equal(time_warp(ramp[:10], 5, RANDOM), ramp[:10])


def test_speed_gain_and_noise() -> None:
    pytest.importorskip("soxr", reason="soxr is not installed")
    found = made(speeds=(1.25,)).sound(tone(1.0, pitch=400), 1.25, (1, 0, 0))
    assert abs(len(found) - 12800) <= 1
    assert np.abs(np.fft.rfft(found)).argmax() / 0.8 == pytest.approx(500, abs=2)
    sound = tone()
    louder = [made(gain=6).sound(sound, 1.0, (1, 0, n)) for n in range(100)]
    decibels = [20 * np.log10(np.abs(each).max() / 0.5) for each in louder]
    assert -6.01 < min(decibels) < -5 and 5 < max(decibels) < 6.01
    noisy = made(noise=0.5, noise_snr=(20, 20))
    added = [noisy.sound(sound, 1.0, (1, 0, n)) - sound for n in range(100)]
    with_noise = [each for each in added if each.any()]
    assert 30 < len(with_noise) < 70
    ratio = 10 * np.log10((sound**2).mean() / (with_noise[0] ** 2).mean())
    assert ratio == pytest.approx(20, abs=0.3)
    assert made().sound(sound, 1.0, (1, 0, 0)) is sound
