"""Kaldi's data folders: wav.scp, text, and perhaps segments and utt2spk."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from magneto.data.counts import MALFORMED, Counts
from magneto.data.records import read_lines
from magneto.speech.audio import AudioFile
from magneto.speech.manifests import AUDIO_ENDINGS
from magneto.speech.utterances import Row

NO_TEXT = "utterances without a line in text"
NO_RECORDING = "utterances without a recording in wav.scp"
COMMANDS = "recordings behind a command, whose file is read instead"


def kaldi_rows(folder: Path, counts: Counts) -> Iterator[Row]:
    """Yield the utterances of a data folder; those without sound or text are counted.

    Commands in wav.scp (`flac -c -d -s FILE |`) are never run: the file that they read is read
    here, if there is one in them.

    Raises:
        ValueError: If it has no file text.
    """
    if not (folder / "text").is_file():
        raise ValueError(f"{folder} has a wav.scp and no text")
    texts = _table(folder / "text", counts)
    speakers = _table(folder / "utt2spk", counts) if (folder / "utt2spk").is_file() else {}
    files = {}
    for name, place in _table(folder / "wav.scp", counts).items():
        path = _file(place, folder, counts)
        if path:
            files[name] = path
    used = set()
    for id, recording, start, stop in _stretches(folder, files, counts):
        used.add(id)
        if recording not in files:
            counts[NO_RECORDING] += 1
        elif id not in texts:
            counts[NO_TEXT] += 1
        else:
            yield Row(id, AudioFile(files[recording], start, stop), texts[id], speakers.get(id, ""))
    if unused := texts.keys() - used:
        counts[NO_RECORDING] += len(unused)


def _table(path: Path, counts: Counts) -> dict[str, str]:
    """Return the lines of a file by their first word."""
    parts = ([*line.split(None, 1), ""] for line in read_lines(path, counts) if line.strip())
    return {name: rest.strip() for name, rest, *_ in parts}


def _file(place: str, folder: Path, counts: Counts) -> str:
    """Return the file that a line of wav.scp names; "" if it names none."""
    path = place
    if place.endswith("|"):
        try:
            words = shlex.split(place[:-1])
        except ValueError:  # a quote that nothing closes
            words = []
        words = [word for word in words if word.lower().endswith(AUDIO_ENDINGS)]
        if len(words) != 1:
            counts[MALFORMED] += 1
            return ""
        counts[COMMANDS] += 1
        path = words[0]
    here = folder / path
    return str(here if here.exists() else Path(path))


def _stretches(
    folder: Path, files: dict[str, str], counts: Counts
) -> Iterator[tuple[str, str, float, float | None]]:
    """Yield utterance, recording, start and stop, by segments or else a whole recording each."""
    if not (folder / "segments").is_file():
        yield from ((name, name, 0.0, None) for name in files)
        return
    for line in read_lines(folder / "segments", counts):
        cells = line.split()
        if not cells:
            continue
        try:
            id, recording, start, stop = cells[:4]
            first, last = float(start), float(stop)
        except ValueError:
            counts[MALFORMED] += 1
            continue
        # Kaldi writes -1 for the end of the recording.
        yield id, recording, first, last if last >= 0 else None
