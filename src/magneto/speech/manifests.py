"""Manifests: a line per utterance that says where its sound is and what is said.

.tsv and .csv have a line of column names, .jsonl (also NeMo's .json) has objects. Paths are
relative to the manifest, or to its folder clips/ (Common Voice).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from magneto.data.counts import MALFORMED, Counts
from magneto.data.files import unpacked_name
from magneto.data.records import read_objects, read_quoted, read_tabs
from magneto.speech.audio import AudioFile
from magneto.speech.utterances import Row

ENDINGS = (".tsv", ".csv", ".jsonl", ".json")
AUDIO_ENDINGS = (".wav", ".flac", ".ogg", ".mp3", ".opus", ".aiff", ".sph")
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
    folder = path.parent / "clips" if (path.parent / "clips").is_dir() else path.parent
    for record in _records(path, counts):
        try:
            row = _row(record, folder)
        except (ValueError, TypeError):
            row = None
        if row is None:
            counts[MALFORMED] += 1
        else:
            yield row


def _records(path: Path, counts: Counts) -> Iterator[Record]:
    name = unpacked_name(path)
    if name.endswith((".jsonl", ".json")):
        yield from read_objects(path, counts)
        return
    rows = read_tabs(path, counts) if name.endswith(".tsv") else read_quoted(path, ",", counts)
    names = next(rows, [])
    if not (set(names) & set(AUDIO) and set(names) & set(TEXT)):
        raise ValueError(f"{path}: its first line names no column of sound ({', '.join(AUDIO)}) "
                         f"or none of text ({', '.join(TEXT)})")  # fmt: skip
    for cells in rows:
        if len(cells) == len(names):
            yield dict(zip(names, cells, strict=True))
        elif any(cells):
            counts[MALFORMED] += 1


def _row(record: Record, folder: Path) -> Row | None:
    audio, text = pick(record, AUDIO), pick(record, TEXT)
    if isinstance(audio, Mapping):  # as the Hugging Face hub writes it
        audio = audio.get("path")
    if not isinstance(audio, str) or not audio or not isinstance(text, str):
        return None
    start, stop = _stretch(record)
    place = folder / Path(audio).expanduser()
    whole = str(Path(audio).with_suffix("")) + (f"-{start:.2f}" if stop is not None else "")
    channel = pick(record, CHANNEL)
    file = AudioFile(str(place), start, stop, None if channel in (None, "") else int(channel))
    return Row(str(pick(record, ID) or whole), file, text, str(pick(record, SPEAKER) or ""))


def _stretch(record: Record) -> tuple[float, float | None]:
    """Return where a stretch starts and stops, in seconds; a length alone is that of the file.

    Raises:
        ValueError: If they are no numbers, or no stretch.
    """
    start, stop, duration = (pick(record, names) for names in (START, STOP, DURATION))
    if start in (None, "") and stop in (None, ""):
        return 0.0, None
    first = float(start or 0)
    last = float(stop) if stop not in (None, "") else None
    if last is None and duration not in (None, ""):
        last = first + float(duration)
    if not (0 <= first < (math.inf if last is None else last)):
        raise ValueError("no stretch")
    return first, last


def pick(record: Record, names: Sequence[str]) -> Any:
    """Return the value of the first of the names that a record has; None if it has none."""
    return next((record[name] for name in names if record.get(name) is not None), None)


def audio_beside(folder: Path, find: Callable[[Path, str], Iterator[Path]] = Path.glob
                 ) -> dict[str, Path]:  # fmt: skip
    """Return the recordings of a folder by their names without endings.

    Args:
        folder: Where to look.
        find: `Path.rglob` to look in the folders inside it too.
    """
    files = sorted(find(folder, "*"))
    return {file.stem: file for file in files if file.suffix.lower() in AUDIO_ENDINGS}
