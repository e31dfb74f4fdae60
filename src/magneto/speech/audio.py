"""Recordings as samples: any format that libsndfile reads, one channel, one sample rate.

What is wrong with a recording never raises: it comes out beside the samples that are there, so that
training can leave it out, and evaluation can use what is left.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from magneto.files import import_extra

# What can be wrong, in the words that counts are described in.
MISSING = "missing recordings"
UNREADABLE = "unreadable recordings"
NO_SAMPLES = "recordings without samples"
TRUNCATED = "truncated recordings"
NON_FINITE = "recordings with non-finite samples"
SILENCE = "recordings of silence"
# A softer peak is silence: half a step of 16 bits.
SILENT_PEAK = 2.0**-16
# Missing of a recording's end by its header, in seconds, which encoders' padding explains.
TOLERANCE = 0.1
# Sizes from here on are written by programs that did not know the length.
UNKNOWN_SIZE = 0x7FFF0000


@dataclass(frozen=True)
class Sound:
    """What could be read of a recording.

    Attributes:
        samples: Mono, float32; those that are not finite are 0.
        problem: What is wrong with it, in the words of this module's constants; "" if nothing.
    """

    samples: np.ndarray
    problem: str = ""


NOTHING = np.zeros(0, np.float32)


class Recording(Protocol):
    """A stretch of sound, wherever it lies."""

    def seconds(self) -> tuple[float, str]:
        """Return how long it says it is, without decoding it, and what is wrong so far."""
        ...

    def read(self, sample_rate: int) -> Sound:
        """Return its samples."""
        ...


@dataclass(frozen=True, slots=True)
class AudioFile:
    """A file, or a stretch of it.

    Attributes:
        path: Of the file.
        start: Where the stretch begins, in seconds.
        stop: Where it ends, in seconds; None for the file's end.
        channel: Of several, from 0; None for their mean.
    """

    path: str
    start: float = 0.0
    stop: float | None = None
    channel: int | None = None

    def seconds(self) -> tuple[float, str]:
        """Return the length by the header; it costs no decoding."""
        return header_seconds(self.path, self.start, self.stop)

    def read(self, sample_rate: int) -> Sound:
        """Return the samples of the stretch."""
        return read_sound(self.path, sample_rate, self.start, self.stop, self.channel)


def import_soundfile() -> Any:
    """Import soundfile, or say which extra has it."""
    return import_extra("soundfile", "speech", "recordings need soundfile")


def opened(file: str | bytes) -> Any:
    """Return what soundfile opens: a path, or bytes as a file."""
    return io.BytesIO(file) if isinstance(file, bytes) else file


def header_seconds(
    file: str | bytes, start: float = 0.0, stop: float | None = None
) -> tuple[float, str]:
    """Return how long a stretch of a file is by its header, and what is wrong so far."""
    library = import_soundfile()
    if isinstance(file, str) and not Path(file).is_file():
        return 0.0, MISSING
    try:
        info = library.info(opened(file))
    except (library.LibsndfileError, OSError, RuntimeError):
        return 0.0, UNREADABLE if _has_bytes(file) else NO_SAMPLES
    whole = info.frames / info.samplerate if info.samplerate > 0 else 0.0
    length = min(whole, whole if stop is None else stop) - start
    if length <= 0:
        return 0.0, NO_SAMPLES
    return length, TRUNCATED if _ends_early(file, info, whole, stop) else ""


def read_sound(
    file: str | bytes,
    sample_rate: int,
    start: float = 0.0,
    stop: float | None = None,
    channel: int | None = None,
) -> Sound:
    """Read a stretch of a file: .wav, .flac, .ogg, .mp3 and what else libsndfile knows.

    Args:
        file: Its path or its bytes.
        sample_rate: To resample to where it has another, in Hz.
        start: In seconds.
        stop: In seconds; None for the end.
        channel: Of several, from 0; None for their mean.

    Raises:
        ModuleNotFoundError: If soundfile, or soxr where it has to resample, is not installed.
    """
    library = import_soundfile()
    if isinstance(file, str) and not Path(file).is_file():
        return Sound(NOTHING, MISSING)
    try:
        with library.SoundFile(opened(file)) as found:
            rate, whole = found.samplerate, found.frames
            first = round(start * rate)
            last = whole if stop is None else min(round(stop * rate), whole)
            wanted = max(last - first, 0)
            if wanted:
                found.seek(first)
            samples = found.read(wanted, dtype="float32", always_2d=True)
            early = _ends_early(file, found, whole / rate, stop)
    except (library.LibsndfileError, OSError, RuntimeError):
        return Sound(NOTHING, UNREADABLE if _has_bytes(file) else NO_SAMPLES)
    if len(samples) == 0:
        return Sound(NOTHING, NO_SAMPLES if wanted == 0 else UNREADABLE)
    problem = TRUNCATED if early or wanted - len(samples) > TOLERANCE * rate else ""
    mono = samples.mean(1) if channel is None else samples[:, min(channel, samples.shape[1] - 1)]
    return checked(resampled(mono, rate, sample_rate), problem)


def checked(samples: np.ndarray, problem: str = "") -> Sound:
    """Return samples without what is not finite, and what is wrong with them."""
    finite = np.isfinite(samples)
    if not finite.all():
        return Sound(np.where(finite, samples, 0).astype(np.float32), NON_FINITE)
    if len(samples) and np.abs(samples).max() < SILENT_PEAK:
        problem = problem or SILENCE
    return Sound(np.ascontiguousarray(samples, np.float32), problem)


def resampled(samples: np.ndarray, rate: float, wanted: float) -> np.ndarray:
    """Return samples at another rate, by soxr's high quality.

    Raises:
        ModuleNotFoundError: If soxr is needed and not installed.
    """
    if rate == wanted or len(samples) == 0:
        return samples
    library = import_extra(
        "soxr", "speech", f"resampling from {rate:g} to {wanted:g} Hz needs soxr"
    )
    return library.resample(np.nan_to_num(samples) if not np.isfinite(samples).all() else samples,
                            rate, wanted)  # fmt: skip


def _has_bytes(file: str | bytes) -> bool:
    return len(file) > 0 if isinstance(file, bytes) else Path(file).stat().st_size > 0


def _ends_early(file: str | bytes, info: Any, whole: float, stop: float | None) -> bool:
    """Return whether a stretch, or a .wav's header, goes beyond the end of the file."""
    if stop is not None:
        return stop - whole > TOLERANCE
    if info.format not in ("WAV", "WAVEX"):
        return False
    if isinstance(file, bytes):
        return missing_bytes(io.BytesIO(file), len(file)) > TOLERANCE * info.samplerate
    with open(file, "rb") as raw:
        return missing_bytes(raw, Path(file).stat().st_size) > TOLERANCE * info.samplerate


def missing_bytes(raw: Any, size: int) -> int:
    """Return how many bytes a .wav lacks by its header, of which libsndfile says nothing.

    Args:
        raw: The file, at its start.
        size: Its bytes.
    """
    place = 12
    while place + 8 <= size:
        raw.seek(place)
        name, length = struct.unpack("<4sI", raw.read(8))
        place += 8
        if name == b"data":
            return 0 if length >= UNKNOWN_SIZE else max(place + length - size, 0)
        place += length + length % 2
    return 0
