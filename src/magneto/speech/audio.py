"""Decoding of recordings to mono samples at a given sample rate.

All formats of libsndfile are supported. For a damaged recording, `read_sound` raises no error, and
returns the readable samples and a message. Training skips a damaged recording, and evaluation uses
the readable samples.
"""

from __future__ import annotations

import io
import math
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from magneto.data.problems import BadRecord
from magneto.files import import_extra

# Problems of recordings, as shown in counts.
MISSING = "missing recordings"
UNREADABLE = "unreadable recordings"
NO_SAMPLES = "recordings without samples"
TRUNCATED = "truncated recordings"
NO_CHANNEL = "recordings without the requested channel"
NON_FINITE = "recordings with non-finite samples"
SILENCE = "recordings of silence"
NO_FRAMES = "recordings shorter than a frame"
DAMAGED = "damaged from here on"
# Peak below which a recording is silent: half a step of 16 bits.
SILENT_PEAK = 2.0**-16
# Samples of a damaged file decoded at a time: a block of FLAC.
BLOCK = 1 << 12
# Formats in which seeking gives wrong samples.
NOT_SEEKABLE = ("MP3", "MPEG")
# Seconds of a streamed recording, and bytes of raw audio, read at a time.
SECONDS = 30.0
BYTES = 1 << 16
# Seconds that may be missing at the end of a recording without a problem: padding of encoders.
TOLERANCE = 0.1
# Maximum size of an Ogg page, and size of its header without the segment table, in bytes.
OGG_PAGE = 1 << 16
OGG_HEADER = 27
# Data sizes from this one on mark a .wav that was written to a pipe, without a known length.
STREAM_BYTES = 0x7FFFF000
# libsndfile's length of a .flac that was written to a pipe.
NO_LENGTH = 2**63 - 1
# Plausible sample rates in Hz; others indicate damage and could resample to any size.
LEAST_RATE, MOST_RATE = 1000, 1_000_000
# Limit of samples per byte (.flac stores 4096 silent samples in 14 bytes), to protect memory.
SAMPLES_PER_BYTE = 2000

File = str | bytes | Callable[[], str | bytes]
"""Path or bytes of a recording, or a function that returns the path or the bytes."""


class AudioError(BadRecord):
    """Error for a recording without usable samples; the message says what is wrong."""


@dataclass(frozen=True)
class Segment:
    """Segment of a recording.

    Attributes:
        start: Start in seconds.
        stop: End in seconds; None for the end of the file.
        channel: Index of the channel; None for the mean of all channels.
    """

    start: float = 0.0
    stop: float | None = None
    channel: int | None = None


FULL = Segment()


@dataclass(frozen=True)
class Waveform:
    """Decoded samples of a recording.

    Attributes:
        samples: Mono samples, float32; non-finite samples are replaced by 0.
        problem: Problem of the recording, one of this module's constants; "" without a problem.
    """

    samples: np.ndarray
    problem: str = ""


NO_WAVEFORM = np.zeros(0, np.float32)


@contextmanager
def open_audio(file: File, segment: Segment = FULL) -> Iterator[Any]:
    """Open a recording as a `soundfile.SoundFile`; raise AudioError for an unusable recording."""
    wrong = MISSING
    try:
        content = file() if callable(file) else file
        in_memory = isinstance(content, bytes)
        if not in_memory and not os.path.isfile(content):
            raise AudioError(MISSING)
        size = len(content) if in_memory else os.path.getsize(content)
        wrong = UNREADABLE if size else NO_SAMPLES
        with open_file(content) as found:
            if found.frames == NO_LENGTH:
                found._info.frames = count_samples(without_seeking(open_file(content)))
                without_seeking(found)
            can_be = LEAST_RATE <= found.samplerate <= MOST_RATE
            if not can_be or not 0 <= found.frames <= SAMPLES_PER_BYTE * size:
                raise AudioError(UNREADABLE)
            if segment.channel is not None and not 0 <= segment.channel < found.channels:
                raise AudioError(NO_CHANNEL)
            if found.format in NOT_SEEKABLE:
                without_seeking(found)
            yield found
    except (AudioError, ModuleNotFoundError):
        raise
    except Exception as error:  # a file may be damaged in any way
        raise AudioError(wrong) from error


def open_file(content: str | bytes) -> Any:
    library = import_extra("soundfile", "speech", "recordings need soundfile")
    return library.SoundFile(io.BytesIO(content) if isinstance(content, bytes) else content)


def without_seeking(file: Any) -> Any:
    """Stop soundfile from seeking after each read."""
    file.seekable = lambda: False
    return file


def count_samples(file: Any) -> int:
    """Count a recording's samples by decoding it, because its header has no length.

    For a damaged recording, one second is added, so that readers reach the damage.
    """
    count = 0
    with file, suppress(AudioError):
        for block in read_blocks(file, 0, int(SECONDS * file.samplerate)):
            count += len(block)
        return count
    return count + file.samplerate


def header_seconds(file: File, segment: Segment = FULL) -> tuple[float, str]:
    """Return a segment's duration in seconds, and the recording's problem ("" if none).

    Only the header of the file is read, unless it lacks the length.
    """
    try:
        with open_audio(file, segment) as found:
            total = found.frames / found.samplerate
            length = min(total, total if segment.stop is None else segment.stop) - segment.start
            if length <= 0:
                return 0.0, NO_SAMPLES
            return length, TRUNCATED if is_truncated(found, segment.stop) else ""
    except AudioError as error:
        return 0.0, str(error)


def read_sound(file: File, sample_rate: int, segment: Segment = FULL) -> Waveform:
    """Read a segment of a recording (.wav, .flac, .ogg, .mp3 and other formats of libsndfile).

    The result is resampled to `sample_rate` Hz.

    Raises:
        ModuleNotFoundError: If soundfile is not installed, or if resampling is needed and soxr is
            not installed.
    """
    try:
        with open_audio(file, segment) as found:
            rate, total = found.samplerate, found.frames
            first = round(min(segment.start * rate, total))
            last = total if segment.stop is None else round(min(segment.stop * rate, total))
            count = max(last - first, 0)
            # An .mp3 is read from its start.
            skipped = first if found.format in NOT_SEEKABLE else 0
            parts, size = [np.zeros((0, found.channels), np.float32)], count + skipped
            with suppress(AudioError):
                for block in read_blocks(found, first - skipped, size, count and size):
                    parts.append(block)
            samples = (parts[-1] if len(parts) == 2 else np.concatenate(parts))[skipped:]
            if len(samples) == 0:
                return Waveform(NO_WAVEFORM, NO_SAMPLES if count == 0 else UNREADABLE)
            early = count - len(samples) > TOLERANCE * rate
            early = early or is_truncated(found, segment.stop)
            mono = samples.mean(1) if segment.channel is None else samples[:, segment.channel]
            sound = check_samples(mono, TRUNCATED if early else "")
            return replace(sound, samples=resample(sound.samples, rate, sample_rate))
    except AudioError as error:
        return Waveform(NO_WAVEFORM, str(error))


def read_blocks(file: Any, first: int, size: int, left: float = math.inf) -> Iterator[np.ndarray]:
    """Yield the samples of a `soundfile.SoundFile` in blocks (samples, channels).

    `first` is the index of the first sample. A block has at most `size` samples. At most `left`
    samples are yielded in total.

    Raises:
        AudioError: If the file is damaged. All samples before the damaged part are yielded first.
    """
    damaged = False
    if first:
        file.seek(first)
    while left > 0:
        try:
            block = file.read(int(min(size, left)), dtype="float32", always_2d=True)
        except RuntimeError as error:  # libsndfile's
            if damaged:
                raise AudioError(DAMAGED) from error
            damaged, size = True, BLOCK
            file = seek_again(file, first)
            continue
        if len(block) == 0:
            break
        yield block
        first, left = first + len(block), left - len(block)
    if damaged:
        raise AudioError(DAMAGED)


def seek_again(file: Any, first: int) -> Any:
    try:
        file.seek(first)
    except RuntimeError:  # after damage, libsndfile may refuse to seek in an open .flac
        name = file.name
        file = without_seeking(open_file(name.getvalue() if isinstance(name, io.BytesIO) else name))
        file.seek(first)
    return file


def sound_pieces(
    file: File, sample_rate: int, report: Callable[[str], None]
) -> Iterator[np.ndarray]:
    """Yield mono samples, resampled to `sample_rate` Hz, in pieces of `SECONDS` seconds.

    `report` is called with the problem of a damaged file or of a file without usable samples.
    """
    has_samples = False
    try:
        with open_audio(file) as found:
            resample_piece = stream_resampler(found.samplerate, sample_rate)
            try:
                for samples in read_blocks(found, 0, int(SECONDS * found.samplerate)):
                    has_samples = True
                    yield resample_piece(check_samples(samples.mean(1)).samples, False)
                if not has_samples:
                    report(NO_SAMPLES)
            except AudioError as error:
                report(str(error) if has_samples else UNREADABLE)
            yield resample_piece(NO_WAVEFORM, True)
    except AudioError as error:
        report(str(error))


def raw_pieces(source: Any) -> Iterator[np.ndarray]:
    """Decode raw mono audio (16 bits, little-endian), and yield the samples in pieces, float32.

    `source` is a byte stream with the method `read1`. An odd byte at the end is dropped.
    """
    rest = b""
    while piece := source.read1(BYTES):
        rest += piece
        size = len(rest) // 2 * 2
        yield np.frombuffer(rest[:size], "<i2").astype(np.float32) / 32768
        rest = rest[size:]


def stream_resampler(rate: int, sample_rate: int) -> Callable[[np.ndarray, bool], np.ndarray]:
    """Return a function that resamples a stream piece by piece.

    The function takes a piece of the stream, and a flag that is True for the last piece. The
    function returns all resampled samples that no later piece can change.
    """
    if rate == sample_rate:
        return lambda samples, last: samples
    library = import_soxr(rate, sample_rate)
    return library.ResampleStream(rate, sample_rate, 1, dtype="float32").resample_chunk


def check_samples(samples: np.ndarray, problem: str = "") -> Waveform:
    finite = np.isfinite(samples)
    if not finite.all():
        return Waveform(np.where(finite, samples, 0).astype(np.float32), NON_FINITE)
    if len(samples) and np.abs(samples).max() < SILENT_PEAK:
        problem = problem or SILENCE
    return Waveform(np.ascontiguousarray(samples, np.float32), problem)


def resample(samples: np.ndarray, rate: float, sample_rate: float) -> np.ndarray:
    """Resample samples with soxr; raise ModuleNotFoundError if soxr is not installed."""
    if rate == sample_rate or len(samples) == 0:
        return samples
    return import_soxr(rate, sample_rate).resample(samples, rate, sample_rate)


def import_soxr(rate: float, sample_rate: float) -> Any:
    needs = f"resampling from {rate:g} to {sample_rate:g} Hz needs soxr"
    return import_extra("soxr", "speech", needs)


def is_truncated(found: Any, stop: float | None) -> bool:
    """Return whether a recording lacks samples at the end.

    If `stop` is given, only the samples before `stop` seconds must exist. libsndfile does not
    report truncated .wav and .ogg files.
    """
    if stop is not None:
        return stop - found.frames / found.samplerate > TOLERANCE
    in_memory = isinstance(found.name, io.BytesIO)
    with nullcontext(found.name) if in_memory else open(found.name, "rb") as raw:
        if found.format == "OGG":
            return not ogg_is_complete(raw)
        return missing_wav_seconds(raw) > TOLERANCE


def missing_wav_seconds(raw: Any) -> float:
    """Return how many seconds a .wav lacks according to its header; 0 for other formats.

    For a .wav from a pipe, whose header has no true length, the result is also 0.
    """
    size = raw.seek(0, io.SEEK_END)
    raw.seek(0)
    place, bytes_per_second = 12, 0
    if raw.read(4) != b"RIFF":
        return 0.0
    while place + 8 <= size:
        raw.seek(place)
        name, length = struct.unpack("<4sI", raw.read(8))
        place += 8
        if name == b"fmt ":
            (bytes_per_second,) = struct.unpack("<8xI", raw.read(12))
        if name == b"data":
            missing = 0 if length >= STREAM_BYTES else place + length - size
            return missing / max(bytes_per_second, 1)
        place += length + length % 2
    return 0.0


def ogg_is_complete(raw: Any) -> bool:
    size = raw.seek(0, io.SEEK_END)
    raw.seek(max(size - OGG_PAGE, 0))
    tail = raw.read()
    page = tail.rfind(b"OggS")
    header = tail[page : page + OGG_HEADER]
    # Flag 4 of a page's header marks the last page.
    if page < 0 or len(header) < OGG_HEADER or not header[5] & 4:
        return False
    segments = tail[page + OGG_HEADER :][: header[-1]]
    return len(tail) - page >= OGG_HEADER + header[-1] + sum(segments)
