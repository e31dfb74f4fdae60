"""Kaldi's data folders: wav.scp, text, and perhaps segments and utt2spk."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from magneto.data.counts import Counts
from magneto.data.files import read_lines
from magneto.data.problems import BadRecord, read_each
from magneto.speech.audio import AudioFile
from magneto.speech.manifests import AUDIO_ENDINGS, stretch
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
    places = _table(folder / "wav.scp", counts).items()
    files = dict(read_each(places, lambda line: (line[0], _file(line[1], folder, counts)), counts,
                           f"{folder / 'wav.scp'}, line"))  # fmt: skip
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
    """Return the file that a line of wav.scp names.

    Raises:
        ValueError: If it names none, or several.
    """
    path = place
    if place.endswith("|"):
        words = [w for w in shlex.split(place[:-1]) if w.lower().endswith(AUDIO_ENDINGS)]
        if len(words) != 1:
            raise BadRecord(f"a command with {len(words)} recordings")
        counts[COMMANDS] += 1
        path = words[0]
    here = folder / path
    return str(here if os.path.exists(here) else path)


def _stretches(
    folder: Path, files: dict[str, str], counts: Counts
) -> Iterator[tuple[str, str, float, float | None]]:
    """Yield utterance, recording, start and stop, by segments or else a whole recording each."""
    if not (folder / "segments").is_file():
        yield from ((name, name, 0.0, None) for name in files)
        return
    path = folder / "segments"
    yield from read_each(read_lines(path, counts), _segment, counts, f"{path}, line")


def _segment(line: str) -> tuple[str, str, float, float | None] | None:
    cells = line.split()
    if not cells:
        return None
    id, recording, start, stop = cells[:4]
    # Kaldi writes -1 for the end of the recording.
    return id, recording, *stretch(start, None if float(stop) == -1 else stop)
