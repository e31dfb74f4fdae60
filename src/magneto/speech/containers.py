"""What libsndfile does not say of audio files: which are cut off, and which can't be true."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

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
