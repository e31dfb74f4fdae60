"""Samples of recordings that are too long to hold, or that only come: a piece at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from magneto.data.problems import BadRecord, guarded
from magneto.files import import_extra
from magneto.speech.audio import (
    NO_SAMPLES,
    UNREADABLE,
    checked,
    import_soundfile,
    up_to_damage,
)
from magneto.speech.containers import plausible

# Seconds of a recording that are read at once.
SECONDS = 30.0
# Bytes of raw sound that are read at once, if so many are there.
BYTES = 1 << 16


class StreamResampler:
    """Brings samples that come in pieces to another rate, as if they came at once.

    Args:
        rate: Of the samples, in Hz.
        wanted: Likewise.

    Raises:
        ModuleNotFoundError: If soxr is needed and not installed.
    """

    def __init__(self, rate: int, wanted: int) -> None:
        self._change: Callable[[np.ndarray, bool], np.ndarray] = lambda samples, last: samples
        if rate != wanted:
            library = import_extra("soxr", "speech", f"{rate} Hz instead of {wanted} needs soxr")
            stream = library.ResampleStream(rate, wanted, 1, dtype="float32")
            self._change = stream.resample_chunk

    def __call__(self, samples: np.ndarray, last: bool = False) -> np.ndarray:
        """Return what is ready; after the last piece, all."""
        return self._change(np.ascontiguousarray(samples, np.float32), last)


def file_pieces(path: Path, wanted: int, tell: Callable[[str], None]) -> Iterator[np.ndarray]:
    """Yield the samples of a file, the mean of its channels, up to where it is damaged.

    They are those of `magneto.speech.audio.read_sound`, but for less than its block at the damage.

    Args:
        path: Of the file: .wav, .flac, .ogg, .mp3 and what else libsndfile knows.
        wanted: Sample rate, in Hz.
        tell: Told what is wrong with it.
    """
    library = import_soundfile()
    try:
        with guarded(), library.SoundFile(path) as found:
            if not plausible(str(path), found):
                tell(UNREADABLE)
                return
            change = StreamResampler(found.samplerate, wanted)
            for samples in _pieces(found, tell):
                yield change(checked(samples.mean(1)).samples)
            yield change(np.zeros(0, np.float32), last=True)
    except BadRecord:
        tell(UNREADABLE)


def _pieces(file: Any, tell: Callable[[str], None]) -> Iterator[np.ndarray]:
    """Yield (samples, channels) of an open file, `SECONDS` at a time, up to where it is damaged."""
    library = import_soundfile()
    size, count = int(SECONDS * file.samplerate), 0
    while True:
        try:
            samples = file.read(size, dtype="float32", always_2d=True)
            damaged = False
        except library.LibsndfileError:
            file.seek(count)
            samples, damaged = up_to_damage(file, size, library), True
        count += len(samples)
        if len(samples):
            yield samples
        if damaged:
            tell("damaged from here on" if count else UNREADABLE)
        elif count == 0:
            tell(NO_SAMPLES)
        if damaged or not len(samples):
            return


def raw_pieces(source: Any, rate: int, wanted: int) -> Iterator[np.ndarray]:
    """Yield samples of raw sound as they come: 16 bits, little-endian, one channel.

    Args:
        source: A stream of bytes with `read1`. Half a sample at its end is dropped.
        rate: Of the sound, in Hz.
        wanted: Sample rate of what is yielded.
    """
    change, rest = StreamResampler(rate, wanted), b""
    while piece := source.read1(BYTES):
        rest += piece
        whole = len(rest) // 2 * 2
        samples = np.frombuffer(rest[:whole], "<i2").astype(np.float32) / 32768
        rest = rest[whole:]
        yield change(samples)
    yield change(np.zeros(0, np.float32), last=True)
