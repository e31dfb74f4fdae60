"""What reads each split of a source of utterances: files, shards, parquet, the hub and folders.

A folder is LibriSpeech's, Kaldi's, one of tables (Common Voice's has its recordings in clips/), or
one of recordings with a .txt beside each: each layout is a function from its files to rows.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from magneto.data.files import (
    RECORDS,
    Record,
    existing_path,
    has_ending,
    read_lines,
    unpacked_name,
    walk_files,
)
from magneto.data.formats import (
    SUPPORTED,
    find_shards,
    read_file,
    read_hub,
    read_shards,
    shards_by_split,
)
from magneto.data.media import AUDIO_ENDINGS
from magneto.data.problems import MALFORMED, BadRecord, Counts, guarded, read_each
from magneto.data.sources import HubDataset, check_builtin, find_source, split_of
from magneto.data.table import Table, by_split, whole_table
from magneto.progress import Progress
from magneto.speech.config import NAMES, SpeechDataConfig
from magneto.speech.synthetic import synthetic_table

NO_TEXT = "utterances without a line in text"
NO_RECORDING = "utterances without a recording in wav.scp"
COMMANDS = "recordings behind a command, whose file is read instead"
# How folders are known.
TRANSCRIPTS = ".trans.txt"
WAV_SCP = "wav.scp"
# What functions from files to rows say of an utterance.
ROW = ("audio", "text", "id", "speaker", "start", "stop")

Tables = Callable[[Counts], list[Table]]
"""Reads what a split is made of; told of what is left out."""


def open_source(
    source: str, config: SpeechDataConfig, seed: int, progress: Progress
) -> dict[str, Tables]:
    """Return what reads each split of a source, by the split's own name; nothing is read yet.

    Raises:
        FileNotFoundError: If there is no such path; names the nearest.
        ValueError: If a name is unknown, or there is nothing to read at the path.
    """
    found = find_source(source)
    if found.kind == "builtin":
        check_builtin(found, NAMES, "speech")
        return {
            name: lambda _, name=name: [synthetic_table(found.name, config, seed, name == "train")]
            for name in ("train", "validation")
        }
    if found.kind == "hf":
        one = found.split or found.name.endswith(".parquet")
        names = [found.split] if one else HubDataset(found).splits(found.config)
        return {
            name or "train": lambda _, name=name: [*read_hub(replace(found, split=name)).values()]
            for name in names
        }
    path = existing_path(source)
    if has_ending(path, RECORDS):
        return one_table(path)
    if shards := find_shards(path):
        return {
            name: lambda counts, own=own: [read_shards(own, counts, progress)]
            for name, own in shards_by_split(path, shards).items()
        }
    if path.is_file():
        raise ValueError(f"{path} is no set of examples: {SUPPORTED}")
    return folder_splits(path)


def one_table(path: Path) -> dict[str, Tables]:
    """Return what reads each split of a file of records, by its column "split" if it has one."""
    met = Counts()
    parts, untold = by_split(read_file(path, met), met), [met]

    def read(name: str, counts: Counts) -> list[Table]:
        counts.update(untold.pop() if untold else ())
        return [parts[name]]

    return {name: partial(read, name) for name in parts}


def folder_splits(folder: Path) -> dict[str, Tables]:
    """Return what reads each split of a folder of files.

    Raises:
        ValueError: If its files are none of the layouts.
    """
    files = list(walk_files(folder))
    places: dict[str, list[Path]] = {}
    if kaldi := [file.parent for file in files if file.name == WAV_SCP]:
        # Not folders that lie in another, as Kaldi's copies for its jobs (split8/1).
        for inner in kaldi:
            if not {*inner.parents} & {*kaldi}:
                name = inner.relative_to(folder).as_posix()
                places[folder.resolve().name if name == "." else name] = [inner]
        return {name: partial(tables_of, own, kaldi_rows, folder) for name, own in places.items()}
    if chapters := [file for file in files if file.name.endswith(TRANSCRIPTS)]:
        for file in chapters:  # SPLIT/SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt
            above = file.relative_to(folder).parts[:-3]
            places.setdefault(above[-1] if above else folder.resolve().name, []).append(file)
        read = librispeech_rows
        return {name: partial(tables_of, own, read, folder) for name, own in places.items()}
    if lists := [file for file in files if file.parent == folder and has_ending(file, RECORDS)]:
        for file in lists:
            places.setdefault(unpacked_name(file).rpartition(".")[0], []).append(file)
        return {
            name: lambda counts, own=own: [read_file(file, counts) for file in own]
            for name, own in places.items()
        }
    there = {*files}
    for file in files:
        if file.suffix.lower() in AUDIO_ENDINGS and file.with_suffix(".txt") in there:
            top = file.relative_to(folder).parts[0]  # maybe that of a split
            name = top if file.parent != folder and split_of(top) else folder.resolve().name
            places.setdefault(name, []).append(file)
    if not places:
        raise ValueError(
            f"no transcripts in {folder}: no *{TRANSCRIPTS} (LibriSpeech), {WAV_SCP} (Kaldi), "
            f"table ({', '.join(RECORDS)}), shards, parquet files, or .txt beside recordings"
        )
    return {name: partial(tables_of, own, beside_rows, folder) for name, own in places.items()}


def tables_of(
    places: Sequence[Path],
    read: Callable[[Path, Counts], Iterable[Record]],
    root: Path,
    counts: Counts,
) -> list[Table]:
    """Return what is read of some files, or folders, as one table with paths below the root."""
    rows = [row for place in places for row in read(place, counts)]
    columns = {name: [row.get(name) for row in rows] for name in ROW}
    columns["audio"] = [str(path).removeprefix(f"{root}/") for path in columns["audio"]]
    return [whole_table(columns, str(root), root)]


def librispeech_rows(path: Path, counts: Counts) -> Iterator[Record]:
    """Yield the utterances of a chapter: lines of an id and what is said; ID.flac beside them.

    The speaker is the first part of the id.
    """
    files = sorted(path.parent.iterdir())
    there = {file.stem: file for file in files if file.suffix.lower() in AUDIO_ENDINGS}
    for line in read_lines(path, counts):
        id, _, text = line.strip().partition(" ")
        if id:
            audio = there.get(id, path.parent / f"{id}.flac")
            yield {"audio": audio, "text": text, "id": id, "speaker": id.partition("-")[0]}


def beside_rows(path: Path, counts: Counts) -> Iterator[Record]:
    """Yield a recording, whose text is in the .txt file of the same name."""
    try:
        with guarded():
            text = " ".join(read_lines(path.with_suffix(".txt"), counts))
    except BadRecord as error:
        counts.met(MALFORMED, str(path), str(error))
    else:
        yield {"audio": path, "text": text}


def kaldi_rows(folder: Path, counts: Counts) -> Iterator[Record]:
    """Yield the utterances of a data folder; those without sound or text are counted.

    Commands in wav.scp (`flac -c -d -s FILE |`) are never run: the file that they read is read
    here, if there is one in them.

    Raises:
        ValueError: If it has no file text.
    """
    if not (folder / "text").is_file():
        raise ValueError(f"{folder} has a {WAV_SCP} and no text")
    texts, places = (_by_first_word(folder / name, counts) for name in ("text", WAV_SCP))
    speakers, cuts = (_by_first_word(folder / name, counts) if (folder / name).is_file() else {}
                      for name in ("utt2spk", "segments"))  # fmt: skip

    def audio(place: tuple[str, str]) -> tuple[str, Path]:
        path = place[1]
        if path.endswith("|"):
            words = [w for w in shlex.split(path[:-1]) if w.lower().endswith(AUDIO_ENDINGS)]
            if len(words) != 1:
                raise BadRecord(f"a command with {len(words)} recordings")
            counts[COMMANDS] += 1
            path = words[0]
        here = folder / path
        return place[0], here if os.path.exists(here) else Path(path).absolute()

    def cut(line: tuple[str, str]) -> Record:
        recording, start, stop = line[1].split()[:3]
        # Kaldi writes -1 for the end of the recording.
        stop = None if float(stop) == -1 else stop
        return {"id": line[0], "audio": recording, "start": start, "stop": stop}

    files = dict(read_each(places.items(), audio, counts, f"{folder / WAV_SCP}, line"))
    rows: Iterable[Record] = ({"id": id, "audio": id} for id in files)
    if cuts:
        rows = read_each(cuts.items(), cut, counts, f"{folder / 'segments'}, line")
    used = set()
    for row in rows:
        id = row["id"]
        used.add(id)
        if row["audio"] not in files:
            counts[NO_RECORDING] += 1
        elif id not in texts:
            counts[NO_TEXT] += 1
        else:
            known = {"text": texts[id], "speaker": speakers.get(id)}
            yield row | known | {"audio": files[row["audio"]]}
    counts[NO_RECORDING] += len(texts.keys() - used)


def _by_first_word(path: Path, counts: Counts) -> dict[str, str]:
    parts = ([*line.split(None, 1), ""] for line in read_lines(path, counts) if line.strip())
    return {name: rest.strip() for name, rest, *_ in parts}
