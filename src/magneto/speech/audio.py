"""Recordings as samples: any format that libsndfile reads, one channel, one sample rate.

What is wrong with a recording never raises: it comes out beside the samples that are there, so that
training can leave it out, and evaluation can use what is left.
"""

from __future__ import annotations

import io
import math
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from magneto.data.problems import BadRecord, guarded
from magneto.files import import_extra

# What can be wrong, in the words that counts are described in.
MISSING = "missing recordings"
UNREADABLE = "unreadable recordings"
NO_SAMPLES = "recordings without samples"
TRUNCATED = "recordings shorter than they say"
NO_CHANNEL = "recordings without the channel that is named"
NON_FINITE = "recordings with non-finite samples"
SILENCE = "recordings of silence"
NO_FRAMES = "recordings shorter than a frame"
DAMAGED = "damaged from here on"
# A softer peak is silence: half a step of 16 bits.
SILENT_PEAK = 2.0**-16
# Samples of a damaged file that are decoded at a time: a block of FLAC's.
BLOCK = 1 << 12
NOT_SEEKABLE = ("MP3", "MPEG")
# Of a recording of any length: seconds that are read at once; and bytes, of raw sound.
SECONDS = 30.0
BYTES = 1 << 16
# Missing of a recording's end by its header, in seconds, which encoders' padding explains.
TOLERANCE = 0.1
# No page of an .ogg has more bytes; those of its header, without the lengths of its segments.
OGG_PAGE = 1 << 16
OGG_HEADER = 27
# A .wav that says so many bytes or more was written to a pipe, and never learnt its length.
STREAM_BYTES = 0x7FFFF000
# Sample rates of recordings, in Hz; others are damage, and would be resampled to any size.
LEAST_RATE, MOST_RATE = 1000, 1_000_000
# Samples that a byte can hold: silence in .flac takes 14 bytes for 4096. More is damage, and would
# fill the memory.
SAMPLES_PER_BYTE = 2000

File = str | bytes | Callable[[], str | bytes]
"""The path of a recording, or its bytes; or what returns one of these, or raises."""


class BadSound(BadRecord):
    """Nothing can be heard in a recording; the message is one of the kinds of problems."""


@dataclass(frozen=True)
class Stretch:
    """What is heard of a file.

    Attributes:
        start: Where it begins, in seconds.
        stop: Where it ends, in seconds; None for the file's end.
        channel: Of several, from 0; None for their mean.
    """

    start: float = 0.0
    stop: float | None = None
    channel: int | None = None


WHOLE = Stretch()


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


@cache
def soundfile() -> Any:
    """Import soundfile, or say which extra has it."""
    return import_extra("soundfile", "speech", "recordings need soundfile")


@contextmanager
def opened(file: File, stretch: Stretch = WHOLE) -> Iterator[Any]:
    """Give a `soundfile.SoundFile`, of which only the header was read.

    Raises:
        BadSound: If nothing can be heard in it, or the body raises anything.
        ModuleNotFoundError: If soundfile is not installed.
    """
    library, size, wrong = soundfile(), 0, MISSING
    try:
        with guarded():
            content = file() if callable(file) else file
            in_memory = isinstance(content, bytes)
            if not in_memory and not os.path.isfile(content):
                raise BadSound(MISSING)
            size = len(content) if in_memory else os.path.getsize(content)
            wrong = UNREADABLE if size else NO_SAMPLES
            with library.SoundFile(io.BytesIO(content) if in_memory else content) as found:
                can_be = LEAST_RATE <= found.samplerate <= MOST_RATE
                if not can_be or not 0 <= found.frames <= SAMPLES_PER_BYTE * size:
                    raise BadSound(UNREADABLE)
                if stretch.channel is not None and not 0 <= stretch.channel < found.channels:
                    raise BadSound(NO_CHANNEL)
                yield found
    except BadSound:
        raise
    except BadRecord as error:
        raise BadSound(wrong) from error


def header_seconds(file: File, stretch: Stretch = WHOLE) -> tuple[float, str]:
    """Return how long a stretch of a file is by its header, and what is wrong so far."""
    try:
        with opened(file, stretch) as found:
            whole = found.frames / found.samplerate
            length = min(whole, whole if stretch.stop is None else stretch.stop) - stretch.start
            if length <= 0:
                return 0.0, NO_SAMPLES
            return length, TRUNCATED if ends_early(found, stretch.stop) else ""
    except BadSound as error:
        return 0.0, str(error)


def read_sound(file: File, sample_rate: int, stretch: Stretch = WHOLE) -> Sound:
    """Read a stretch of a file: .wav, .flac, .ogg, .mp3 and what else libsndfile knows.

    Args:
        file: Its path or its bytes.
        sample_rate: To resample to where it has another, in Hz.
        stretch: What is heard of it.

    Raises:
        ModuleNotFoundError: If soundfile, or soxr where it has to resample, is not installed.
    """
    try:
        with opened(file, stretch) as found:
            rate, whole = found.samplerate, found.frames
            first = round(min(stretch.start * rate, whole))
            last = whole if stretch.stop is None else round(min(stretch.stop * rate, whole))
            wanted = max(last - first, 0)
            # To seek in an .mp3 gives wrong samples, and soundfile seeks after each read: it is
            # read at once from its start.
            skipped = first if found.format in NOT_SEEKABLE else 0
            parts, size = [np.zeros((0, found.channels), np.float32)], wanted + skipped
            with suppress(BadSound):
                for block in blocks(found, first - skipped, size, wanted and size):
                    parts.append(block)
            samples = (parts[-1] if len(parts) == 2 else np.concatenate(parts))[skipped:]
            if len(samples) == 0:
                return Sound(NOTHING, NO_SAMPLES if wanted == 0 else UNREADABLE)
            early = wanted - len(samples) > TOLERANCE * rate
            early = early or ends_early(found, stretch.stop)
            mono = samples.mean(1) if stretch.channel is None else samples[:, stretch.channel]
            sound = checked(mono, TRUNCATED if early else "")
            return replace(sound, samples=resampled(sound.samples, rate, sample_rate))
    except BadSound as error:
        return Sound(NOTHING, str(error))


def blocks(file: Any, first: int, size: int, left: float = math.inf) -> Iterator[np.ndarray]:
    """Yield (samples, channels) of a `soundfile.SoundFile`, `size` samples at a time.

    Where it is damaged they are fewer.

    Raises:
        BadSound: At what is damaged, after all that comes before it.
    """
    damaged = False
    if first:
        file.seek(first)
    while left > 0:
        try:
            block = file.read(int(min(size, left)), dtype="float32", always_2d=True)
        except RuntimeError as error:  # libsndfile's
            if damaged:
                raise BadSound(DAMAGED) from error
            damaged, size = True, BLOCK
            file.seek(first)
            continue
        if len(block) == 0:
            break
        yield block
        first, left = first + len(block), left - len(block)
    if damaged:
        raise BadSound(DAMAGED)


def sound_pieces(path: Path, wanted: int, tell: Callable[[str], None]) -> Iterator[np.ndarray]:
    """Yield the samples of a file as `read_sound` reads them, some seconds at a time.

    Args:
        path: Of the file: .wav, .flac, .ogg, .mp3 and what else libsndfile knows.
        wanted: Sample rate, in Hz.
        tell: Told what is wrong with it.
    """
    heard = False
    try:
        with opened(str(path)) as found:
            change = stream_resampler(found.samplerate, wanted)
            try:
                for samples in blocks(found, 0, int(SECONDS * found.samplerate)):
                    heard = True
                    yield change(checked(samples.mean(1)).samples, False)
                if not heard:
                    tell(NO_SAMPLES)
            except BadSound as error:
                tell(str(error) if heard else UNREADABLE)
            yield change(NOTHING, True)
    except BadSound as error:
        tell(str(error))


def raw_pieces(source: Any, rate: int, wanted: int) -> Iterator[np.ndarray]:
    """Yield raw sound at another rate, as it comes: 16 bits, little-endian, one channel.

    It comes from a stream of bytes with `read1`. Half a sample at its end is dropped.
    """
    change, rest = stream_resampler(rate, wanted), b""
    while piece := source.read1(BYTES):
        rest += piece
        whole = len(rest) // 2 * 2
        samples = np.frombuffer(rest[:whole], "<i2").astype(np.float32) / 32768
        rest = rest[whole:]
        yield change(samples, False)
    yield change(NOTHING, True)


def stream_resampler(rate: int, wanted: int) -> Callable[[np.ndarray, bool], np.ndarray]:
    """Return what brings samples that come in pieces to another rate, as if they came at once.

    It is told of each piece whether it is the last, and returns what is ready.

    Raises:
        ModuleNotFoundError: If soxr is needed and not installed.
    """
    if rate == wanted:
        return lambda samples, last: samples
    library = import_extra("soxr", "speech", f"{rate} Hz instead of {wanted} needs soxr")
    return library.ResampleStream(rate, wanted, 1, dtype="float32").resample_chunk


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
    return library.resample(samples, rate, wanted)


def is_recording(first: bytes) -> bool:
    """Return whether the first four bytes of a stream are those of a .wav, .flac, .ogg or .mp3."""
    if first in (b"RIFF", b"RF64", b"fLaC", b"OggS") or first.startswith(b"ID3"):
        return True
    bits = int.from_bytes(first[:3]) if len(first) == 4 else 0
    # The header of a frame of MPEG audio: eleven bits are set; the version, the layer, the bit rate
    # and the sample rate each have a value that none has.
    version, layer, bit_rate, sample_rate = bits >> 11 & 3, bits >> 9 & 3, bits >> 4 & 15, bits >> 2
    known = version != 1 and layer != 0 and bit_rate != 15 and sample_rate & 3 != 3
    return bits >> 13 == 0x7FF and known


def ends_early(found: Any, stop: float | None) -> bool:
    """Return whether a stretch goes beyond the end of a file, or the file was cut off.

    libsndfile says nothing of a .wav whose header promises more than there is, nor of an .ogg
    without its last page.
    """
    if stop is not None:
        return stop - found.frames / found.samplerate > TOLERANCE
    in_memory = isinstance(found.name, io.BytesIO)
    with nullcontext(found.name) if in_memory else open(found.name, "rb") as raw:
        if found.format == "OGG":
            return not ogg_ends(raw)
        return wav_missing(raw) > TOLERANCE * found.samplerate


def wav_missing(raw: Any) -> int:
    """Return how many bytes of a .wav's samples are missing by its header; 0 of other files.

    None are missing where the header says more than such a file can have: it was written to a pipe,
    by a program that could not go back to fill in the length.
    """
    size = raw.seek(0, io.SEEK_END)
    raw.seek(0)
    place = 12
    if raw.read(4) != b"RIFF":
        return 0
    while place + 8 <= size:
        raw.seek(place)
        name, length = struct.unpack("<4sI", raw.read(8))
        place += 8
        if name == b"data":
            return 0 if length >= STREAM_BYTES else place + length - size
        place += length + length % 2
    return 0


def ogg_ends(raw: Any) -> bool:
    """Return whether the last page of an .ogg says that it is the last, and is whole."""
    size = raw.seek(0, io.SEEK_END)
    raw.seek(max(size - OGG_PAGE, 0))
    tail = raw.read()
    page = tail.rfind(b"OggS")
    header = tail[page : page + OGG_HEADER]
    if page < 0 or len(header) < OGG_HEADER or not header[5] & 4:
        return False
    segments = tail[page + OGG_HEADER :][: header[-1]]
    return len(tail) - page >= OGG_HEADER + header[-1] + sum(segments)
