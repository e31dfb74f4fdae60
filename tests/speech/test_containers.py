"""Headers are read as they are, and not believed."""

import io
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from magneto.speech.audio import ogg_ends, plausible, wav_data
from tests.speech.wavs import write


def chunk(name: bytes, content: bytes, length: int | None = None) -> bytes:
    size = len(content) if length is None else length
    return name + struct.pack("<I", size) + content + b"\0" * (len(content) % 2)


def test_where_a_wav_has_its_samples() -> None:
    start = b"RIFF\0\0\0\0WAVE"
    before = start + chunk(b"fmt ", bytes(16)) + chunk(b"LIST", b"odd")
    content = before + chunk(b"data", bytes(100))
    assert wav_data(io.BytesIO(content)) == (len(before) + 8, 100, len(content))
    promised = before + chunk(b"data", bytes(100), 4000)
    assert wav_data(io.BytesIO(promised)) == (len(before) + 8, 4000, len(promised))
    for other in (b"", b"fLaC" + bytes(50), before, start[:6]):
        assert wav_data(io.BytesIO(other)) == (0, 0, len(other))


def test_the_last_page_of_an_ogg(tmp_path: Path) -> None:
    pytest.importorskip("soundfile", reason="soundfile is not installed")
    content = write(tmp_path / "a.ogg", seconds=10).read_bytes()
    assert ogg_ends(io.BytesIO(content))
    assert not ogg_ends(io.BytesIO(content[: len(content) // 2]))
    assert not ogg_ends(io.BytesIO(b""))
    for cut in (1, len(content) - content.rfind(b"OggS") - 8):  # in the last page and its header
        assert not ogg_ends(io.BytesIO(content[:-cut]))


def test_what_cannot_be_true() -> None:
    for rate, frames, true in ((16000, 5000, True), (1, 5000, False), (10**7, 5000, False),
                               (16000, 10**6, False), (16000, -1, False)):  # fmt: skip
        assert plausible(bytes(100), SimpleNamespace(samplerate=rate, frames=frames)) == true
