"""Recordings as samples: any format that libsndfile reads, one channel, one sample rate.

What is wrong with a recording never raises: it comes out beside the samples that are there, so that
training can leave it out, and evaluation can use what is left.
"""

from __future__ import annotations

import io
import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from magneto.data.problems import BadRecord, guarded
from magneto.files import import_extra

# Missing of a recording's end by its header, in seconds, which encoders' padding explains.
TOLERANCE = 0.1
# No page of an .ogg has more bytes; those of its header, without the lengths of its segments.
OGG_PAGE = 1 << 16
OGG_HEADER = 27
# Sample rates of recordings, in Hz; others are damage, and would be resampled to any size.
LEAST_RATE, MOST_RATE = 1000, 1_000_000
# Samples that a byte can hold: silence in .flac takes 14 bytes for 4096. More is damage, and would
# fill the memory.
SAMPLES_PER_BYTE = 2000


def is_recording(first: bytes) -> bool:
    """Return whether the first four bytes of a stream are those of a .wav, .flac, .ogg or .mp3."""
    if first in (b"RIFF", b"RF64", b"fLaC", b"OggS") or first.startswith(b"ID3"):
        return True
    if len(first) < 4 or first[0] != 0xFF:
        return False
    # The header of a frame of MPEG audio: eleven bits are set; the version, the layer, the bit rate
    # and the sample rate each have a value that none has.
    version, layer = first[1] >> 3 & 3, first[1] >> 1 & 3
    bit_rate, sample_rate = first[2] >> 4, first[2] >> 2 & 3
    synchronised = first[1] >> 5 == 7
    return synchronised and version != 1 and layer != 0 and bit_rate != 15 and sample_rate != 3


def size_of(file: str | bytes) -> int:
    """Return the bytes of a file, or of bytes."""
    return len(file) if isinstance(file, bytes) else Path(file).stat().st_size


def plausible(file: str | bytes, info: Any) -> bool:
    """Return whether a header can be true.

    Args:
        file: A path, or bytes.
        info: What libsndfile says of it.
    """
    most = SAMPLES_PER_BYTE * size_of(file)
    return LEAST_RATE <= info.samplerate <= MOST_RATE and 0 <= info.frames <= most


def raw_bytes(file: str | bytes) -> Any:
    """Open a file, or bytes as one."""
    return io.BytesIO(file) if isinstance(file, bytes) else open(file, "rb")


def ends_early(file: str | bytes, info: Any, whole: float, stop: float | None) -> bool:
    """Return whether a stretch, or a .wav's header, goes beyond the end of the file."""
    if stop is not None:
        return stop - whole > TOLERANCE
    with raw_bytes(file) as raw:
        if info.format == "OGG":
            return not ogg_ends(raw)
        place, length, size = wav_data(raw)
        missing = place + length - size if place else 0
        return missing > TOLERANCE * info.samplerate


def wav_data(raw: Any) -> tuple[int, int, int]:
    """Return where a .wav's samples begin, their bytes by its header, and the file's bytes.

    libsndfile says nothing of a header that promises more than there is. The place is 0 in what is
    no .wav.
    """
    size = raw.seek(0, io.SEEK_END)
    raw.seek(0)
    place = 12
    if raw.read(4) != b"RIFF":
        return 0, 0, size
    while place + 8 <= size:
        raw.seek(place)
        name, length = struct.unpack("<4sI", raw.read(8))
        place += 8
        if name == b"data":
            return place, length, size
        place += length + length % 2
    return 0, 0, size


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


# What can be wrong, in the words that counts are described in.
MISSING = "missing recordings"
UNREADABLE = "unreadable recordings"
NO_SAMPLES = "recordings without samples"
TRUNCATED = "recordings shorter than they say"
NO_CHANNEL = "recordings without the channel that is named"
NON_FINITE = "recordings with non-finite samples"
SILENCE = "recordings of silence"
NO_FRAMES = "recordings shorter than a frame"
# A softer peak is silence: half a step of 16 bits.
SILENT_PEAK = 2.0**-16
# Samples of a damaged file that are decoded at a time: a block of FLAC's.
BLOCK = 1 << 12
NOT_SEEKABLE = ("MP3", "MPEG")


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

    def file(self) -> Path | None:
        """Return the file that it is in, if it is there."""
        ...

    def state(self) -> Any:
        """Return what tells it from others, as plain values: of a file, which stretch."""
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
        return header_seconds(self.path, self.start, self.stop, self.channel)

    def read(self, sample_rate: int) -> Sound:
        """Return the samples of the stretch."""
        return read_sound(self.path, sample_rate, self.start, self.stop, self.channel)

    def file(self) -> Path | None:
        """Return the file, if it is there."""
        return Path(self.path) if os.path.isfile(self.path) else None

    def state(self) -> Any:
        """Return stretch and channel."""
        return (self.start, self.stop, self.channel)


def import_soundfile() -> Any:
    """Import soundfile, or say which extra has it."""
    return import_extra("soundfile", "speech", "recordings need soundfile")


def header_seconds(
    file: str | bytes,
    start: float = 0.0,
    stop: float | None = None,
    channel: int | None = None,
) -> tuple[float, str]:
    """Return how long a stretch of a file is by its header, and what is wrong so far."""
    library = import_soundfile()
    if isinstance(file, str) and not os.path.isfile(file):
        return 0.0, MISSING
    try:
        with guarded():
            info = library.info(file if isinstance(file, str) else io.BytesIO(file))
            return _header_seconds(file, info, start, stop, channel)
    except BadRecord:
        return 0.0, NO_SAMPLES if is_empty(file) else UNREADABLE


def _header_seconds(
    file: str | bytes, info: Any, start: float, stop: float | None, channel: int | None
) -> tuple[float, str]:
    if not plausible(file, info):
        return 0.0, UNREADABLE
    if not has_channel(info, channel):
        return 0.0, NO_CHANNEL
    whole = info.frames / info.samplerate
    length = min(whole, whole if stop is None else stop) - start
    if length <= 0:
        return 0.0, NO_SAMPLES
    return length, TRUNCATED if ends_early(file, info, whole, stop) else ""


def has_channel(info: Any, channel: int | None) -> bool:
    """Return whether a recording has a channel, from 0; None is the mean of all."""
    return channel is None or 0 <= channel < info.channels


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
    if isinstance(file, str) and not os.path.isfile(file):
        return Sound(NOTHING, MISSING)
    opened = file if isinstance(file, str) else io.BytesIO(file)
    try:
        with guarded(), import_soundfile().SoundFile(opened) as found:
            return _read_sound(file, found, sample_rate, start, stop, channel)
    except BadRecord:
        return Sound(NOTHING, NO_SAMPLES if is_empty(file) else UNREADABLE)


def _read_sound(
    file: str | bytes,
    found: Any,
    sample_rate: int,
    start: float,
    stop: float | None,
    channel: int | None,
) -> Sound:
    rate, whole = found.samplerate, found.frames
    if not plausible(file, found):
        return Sound(NOTHING, UNREADABLE)
    if not has_channel(found, channel):
        return Sound(NOTHING, NO_CHANNEL)
    first = round(min(start * rate, whole))
    last = whole if stop is None else round(min(stop * rate, whole))
    wanted = max(last - first, 0)
    samples = _decoded(found, first, wanted, import_soundfile())
    early = ends_early(file, found, whole / rate, stop)
    if len(samples) == 0:
        return Sound(NOTHING, NO_SAMPLES if wanted == 0 else UNREADABLE)
    problem = TRUNCATED if early or wanted - len(samples) > TOLERANCE * rate else ""
    mono = samples.mean(1) if channel is None else samples[:, channel]
    sound = checked(mono, problem)
    return replace(sound, samples=resampled(sound.samples, rate, sample_rate))


def _decoded(file: Any, first: int, wanted: int, library: Any) -> np.ndarray:
    """Read (samples, channels) of a stretch; of a damaged file, up to the damage.

    To seek in an .mp3 gives wrong samples, and soundfile seeks after each read: it is read at once
    from its start.
    """
    if wanted == 0:
        return np.zeros((0, file.channels), np.float32)
    if file.format in NOT_SEEKABLE:
        return file.read(first + wanted, dtype="float32", always_2d=True)[first:]
    try:
        file.seek(first)
        return file.read(wanted, dtype="float32", always_2d=True)
    except library.LibsndfileError:
        file.seek(first)
        return up_to_damage(file, wanted, library)


def up_to_damage(file: Any, wanted: int, library: Any) -> np.ndarray:
    """Read (samples, channels) of an open file from where it stands, as far as they can be read.

    Args:
        file: A `soundfile.SoundFile`.
        wanted: Samples at most.
        library: The module soundfile.
    """
    blocks = []
    while wanted > 0:
        try:
            block = file.read(min(wanted, BLOCK), dtype="float32", always_2d=True)
        except library.LibsndfileError:
            break
        if len(block) == 0:
            break
        blocks.append(block)
        wanted -= len(block)
    return np.concatenate(blocks) if blocks else np.zeros((0, file.channels), np.float32)


def is_empty(file: str | bytes) -> bool:
    """Return whether there is not a byte in a file, or in bytes."""
    return (
        not file if isinstance(file, bytes) else os.path.exists(file) and not os.path.getsize(file)
    )


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
