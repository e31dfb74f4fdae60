"""Manifests: a line per utterance that says where its sound is and what is said.

.tsv and .csv have a line of column names, .jsonl (also NeMo's .json) has objects. Paths are
relative to the manifest, or to its folder clips/ (Common Voice).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from magneto.config import shown
from magneto.data.counts import Counts
from magneto.data.files import read_objects, read_quoted, read_rows, read_tabs, unpacked_name
from magneto.data.media import AUDIO_ENDINGS
from magneto.data.problems import BadRecord
from magneto.files import user_path
from magneto.speech.audio import AudioFile
from magneto.speech.utterances import Row

ENDINGS = (".tsv", ".csv", ".jsonl", ".json")
# Names of columns, best first.
AUDIO = ("audio_filepath", "audio", "path", "file", "wav", "filename", "audio_path")
TEXT = ("text", "sentence", "transcript", "transcription", "normalized_text")
ID = ("id", "utterance_id", "utt_id", "key")
SPEAKER = ("speaker", "speaker_id", "client_id", "spk_id")
START = ("start", "offset", "begin")
STOP = ("stop", "end")
DURATION = ("duration", "seconds")
CHANNEL = ("channel",)

Record = Mapping[str, Any]


def manifest_rows(path: Path, counts: Counts) -> Iterator[Row]:
    """Yield the utterances of a manifest; records without sound, text or times are counted.

    Raises:
        ValueError: If it has no column of sound or of text.
    """
    name = unpacked_name(path)
    folder = path.parent / "clips" if (path.parent / "clips").is_dir() else path.parent
    read = partial(_row, folder=folder)
    if name.endswith((".jsonl", ".json")):
        yield from read_objects(path, counts, read)
        return
    rows = read_tabs(path, counts) if name.endswith(".tsv") else read_quoted(path, ",", counts)
    names = next(rows, [])
    if not (set(names) & set(AUDIO) and set(names) & set(TEXT)):
        raise ValueError(f"{path}: its first line names no column of sound ({', '.join(AUDIO)}) "
                         f"or none of text ({', '.join(TEXT)})")  # fmt: skip
    yield from read_rows(path, rows, names, counts, read)


def _row(record: Record, folder: Path) -> Row:
    audio, text = pick(record, AUDIO), pick(record, TEXT)
    if isinstance(audio, Mapping):  # as the Hugging Face hub writes it
        audio = audio.get("path")
    if not isinstance(audio, str) or not audio or not isinstance(text, str):
        raise BadRecord("no sound, or no text")
    start, stop = stretch(*(pick(record, names) for names in (START, STOP, DURATION)))
    place = folder / user_path(audio)
    whole = str(Path(audio).with_suffix("")) + (f"-{start:.2f}" if stop is not None else "")
    file = AudioFile(str(place), start, stop, _channel(pick(record, CHANNEL)))
    return Row(str(pick(record, ID) or whole), file, text, str(pick(record, SPEAKER) or ""))


def _channel(value: Any) -> int | None:
    """Return the number of a channel, from 0; a table has it as digits. None if none is named."""
    if value in (None, ""):
        return None
    digits = str(value)
    if isinstance(value, bool) or not (digits.isascii() and digits.isdigit()):
        raise BadRecord(f"channel {shown(value)} is no whole number from 0")
    return int(digits)


def stretch(start: Any, stop: Any, duration: Any = None) -> tuple[float, float | None]:
    """Return where a stretch starts and stops, in seconds; a length alone is that of the file.

    Raises:
        ValueError: If they are no numbers, or no stretch.
    """
    if start in (None, "") and stop in (None, ""):
        return 0.0, None
    first = float(start or 0)
    last = float(stop) if stop not in (None, "") else None
    if last is None and duration not in (None, ""):
        last = first + float(duration)
    if not 0 <= first < (math.inf if last is None else last) or last == math.inf:
        raise BadRecord(f"no stretch of sound goes from {first} to {last} s")
    return first, last


def pick(record: Record, names: Sequence[str]) -> Any:
    """Return the value of the first of the names that a record has; None if it has none."""
    return next((record[name] for name in names if record.get(name) is not None), None)


def audio_beside(folder: Path) -> dict[str, Path]:
    """Return the recordings of a folder by their names without endings."""
    files = sorted(folder.iterdir())
    return {file.stem: file for file in files if file.suffix.lower() in AUDIO_ENDINGS}
