"""Speech corpora: reading, and splitting into training and validation utterances.

Usage::

    splits = load_speech(config, seed, progress)     # reads headers; decodes nothing
    splits.train[3]["text"], splits.train[3]["seconds"]

A source is a table with a column of audio and a column of text. `magneto.data.formats` reads tables
from record files, tar shards, Parquet files and the hub. A source may also be a folder in the
layout of LibriSpeech, Kaldi, LJSpeech or Common Voice, or a folder with a .txt file for each
recording.

Training leaves out broken recordings and counts them. Validation transcribes the readable part of a
broken recording. If no part is readable, the hypothesis is empty.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from magneto.config import abbreviate, nearest
from magneto.data.cache import (
    cache_directory,
    content_digest,
    create_cached,
    fingerprint,
    is_cached,
)
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
    media_column,
    read_file,
    read_hub,
    read_shards,
    shards_by_split,
)
from magneto.data.media import AUDIO_ENDINGS, Files, MediaColumn
from magneto.data.problems import EMPTY, MALFORMED, BadRecord, Counts, guarded, read_each
from magneto.data.sources import (
    VALIDATION_ORDER,
    HubDataset,
    check_builtin,
    find_source,
    hash_of,
    split_of,
)
from magneto.data.table import Table, by_split, hold_out, table_of_columns
from magneto.files import read_json, write_json
from magneto.progress import SILENT, Progress
from magneto.speech.audio import NO_FRAMES, Segment, header_seconds
from magneto.speech.config import NAMES, SpeechDataConfig
from magneto.speech.synthetic import SpokenColumn, synthetic_table

# Counters of a split.
READ, KEPT = "read", "utterances"
TOO_LONG = "too long"
TOO_MUCH_TEXT = "with too much text for their duration (data.max_text_rate)"
BEYOND_LIMIT = "beyond data.validation_limit"
ALSO_VALIDATED = "left out of training because they are in the validation split"
# Columns of utterances beside the audio, and further columns of a source.
COLUMNS = ("id", "text", "speaker", "segment")
OTHERS = ("id", "speaker", "start", "stop", "duration", "channel")
# Threads that read headers, which wait for the disk; and rows between reports of progress.
THREADS, STEP = 8, 256
NO_TEXT = "utterances without a line in Kaldi's file named text"
NO_RECORDING = "utterances without a recording in wav.scp"
COMMANDS = "wav.scp commands skipped (the recordings are read directly)"
# Files that identify LibriSpeech and Kaldi folders.
TRANSCRIPTS = ".trans.txt"
WAV_SCP = "wav.scp"
# Table and folder that identify LJSpeech.
LJSPEECH, WAVS = "metadata.csv", "wavs"
# Columns of a folder's rows.
ROW = ("audio", "text", "id", "speaker", "start", "stop")

Reader = Callable[[Counts], Table]
"""Function that reads a split and counts the skipped records."""


@dataclass(frozen=True)
class SpeechSplits:
    """Training and validation utterances of a recipe.

    The columns are "audio", "text", "id", "speaker", "segment", "seconds" and "problem". The
    columns "seconds" and "problem" come from the header of the recording. "seconds" is 0 if the
    duration is unknown.

    `train` has only utterances that pass all checks. `excluded` has the ids of the training
    utterances that fail a check, with the reasons.
    """

    train: Table
    validation: Table
    counts: dict[str, Counts]
    excluded: list[tuple[str, str]]

    @property
    def digest(self) -> str:
        return content_digest(self.train.digest.encode(), self.validation.digest.encode())

    def describe(self, source: str) -> list[str]:
        splits = {"train": self.train, "validation": self.validation}
        return [
            f"{source}, {name}: {self.counts[name].describe(KEPT, READ)}, "
            f"{split.values('seconds').sum() / 3600:.2f} hours"
            for name, split in splits.items()
            if self.counts[name][READ]
        ]


def load_speech(config: SpeechDataConfig, seed: int, progress: Progress = SILENT) -> SpeechSplits:
    """Find the utterances of a source, and split them into training and validation.

    If `source` and `validation_source` are the same, the training split is empty. `seed` determines
    the built-in training sets.

    Raises:
        FileNotFoundError: If a source does not exist.
        ValueError: If a split is missing or has no utterances.
    """
    counts = {"train": Counts(), "validation": Counts()}
    evaluation_only = config.validation_source == config.source
    readers = open_source(config.source, config, seed, progress)
    other = readers
    if config.validation_source is not None and not evaluation_only:
        other = open_source(config.validation_source, config, seed, progress)
    kinds = ("validation",) if config.validation_source is None else VALIDATION_ORDER
    found = (splits_of_kind(other, kind) for kind in kinds)
    names = config.validation_splits or next(filter(None, found), ())
    validation = read_utterances(other, names, config, counts["validation"]) if names else None
    if validation is not None and evaluation_only:
        train = validation.take(np.zeros(0, np.int64))
    else:
        train_names = config.train_splits or splits_of_kind(readers, "train")
        train = read_utterances(readers, train_names, config, counts["train"])
    if validation is None:
        by_speaker = config.hold_out == "speaker" and len(set(train.values("speaker"))) > 1
        key = "speaker" if by_speaker else "id"
        train, validation = hold_out(train, config.validation_fraction, key, counts["train"])
        counts["train"][READ] -= len(validation)
        counts["validation"][READ] = len(validation)
    validated = set(places(validation))
    limit = config.validation_limit
    if limit is not None and len(validation) > limit:
        counts["validation"][BEYOND_LIMIT] = len(validation) - limit
        hashes = np.array([hash_of(id) for id in validation.values("id")], np.uint64)
        validation = validation.take(np.sort(np.argsort(hashes, kind="stable")[:limit]))
    train, validation = (add_headers(table, progress) for table in (train, validation))
    counts["validation"][KEPT] = len(validation)
    counts["validation"].update(problem for problem in validation.values("problem") if problem)
    train, excluded = _fit_to_train(train, validated, config, counts["train"])
    for name, table in {"validation": validation, "train": train}.items():
        if not len(table) and not (name == "train" and evaluation_only):
            source = config.validation_source if name == "validation" else None
            raise ValueError(f"{source or config.source} has no {name} utterances: "
                             f"{counts[name].describe(KEPT, READ)}")  # fmt: skip
    return SpeechSplits(train, validation, counts, excluded)


def splits_of_kind(names: Iterable[str], kind: str) -> tuple[str, ...]:
    """Return the names of all splits of a kind ("train", "validation" or "test").

    If there is only one split, it is a training split. If no split name indicates training, every
    split with an unrecognised name is a training split.
    """
    # In a nested folder ("data/dev") any part of the path counts.
    kinds = {name: split_of(name) for name in names}
    if len(kinds) == 1:
        kinds = dict.fromkeys(kinds, "train")
    elif "train" not in kinds.values():
        kinds = {name: found or "train" for name, found in kinds.items()}
    return tuple(name for name, found in kinds.items() if found == kind)


def read_utterances(
    readers: Mapping[str, Reader], names: Sequence[str], config: SpeechDataConfig, counts: Counts
) -> Table:
    for name in names:
        if name not in readers:
            known = ", ".join(readers)
            raise ValueError(f"no split {name!r}{nearest(name, [*readers])} (splits: {known})")
    tables = [utterance_table(readers[name](counts), config, counts) for name in names]
    if not any(map(len, tables)):
        raise ValueError(f"no utterances in {tables[0].where}{counts.describe()}")
    if len(tables) == 1:
        return tables[0]
    audio = [table.columns["audio"] for table in tables]
    if not all(isinstance(column, Files) for column in audio):
        raise ValueError(f"splits {', '.join(names)} can't be combined, because their recordings "
                         "are not separate files. Give a single split in data.train_splits "
                         "or data.validation_splits.")  # fmt: skip
    columns = {name: [v for t in tables for v in t.values(name)] for name in COLUMNS}
    files = [each.names[n] for each, t in zip(audio, tables, strict=True) for n in t.rows.tolist()]
    return table_of_columns({"audio": Files(audio[0].root, files), **columns}, tables[0].where)


def utterance_table(table: Table, config: SpeechDataConfig, counts: Counts) -> Table:
    media = [name for name, column in table.columns.items() if isinstance(column, MediaColumn)]
    audio = table.find("audio", config.audio_column, media) or next(iter(media), None)
    text = table.find("text", config.text_column)
    if audio is None or text is None:
        raise table.no_column(*("audio", "text") if audio is None else ("text", "audio"))
    sound, texts = media_column(table, audio), table.columns[text]
    others = {what: table.columns[name] for what in OTHERS if (name := table.find(what))}
    change: Callable[[str], str] = {"keep": str, "lower": str.lower, "upper": str.upper}[
        config.text_case
    ]
    present = sound.present()
    columns: dict[str, list[Any]] = {name: [None] * len(sound) for name in COLUMNS}

    def read(number: int) -> int:
        if not present[number] or not isinstance(texts[number], str):
            raise BadRecord("no audio, or no text")
        values = {what: column[number] for what, column in others.items()}
        segment = parse_segment(values)
        name = str(PurePath(sound.key(number)).with_suffix(""))
        name += "" if segment.stop is None else f"-{segment.start:.2f}"
        id, speaker = (values.get(what) for what in ("id", "speaker"))
        id = name if id in (None, "") else str(id)
        speaker = id if speaker in (None, "") else str(speaker)
        row = (id, " ".join(change(texts[number]).split()), speaker, segment)
        for column, value in zip(columns.values(), row, strict=True):
            column[number] = value
        return number

    kept = list(table.read_each(table.rows.tolist(), read, counts))
    counts[READ] += len(kept)
    rows = np.array(kept, np.int64)
    return replace(table, columns={"audio": sound, **columns}, rows=rows)


def parse_segment(values: Mapping[str, Any]) -> Segment:
    """Return the segment of a record, from start, stop, duration and channel.

    Times are in seconds. A duration without start and stop describes the whole file and is ignored.
    """
    start, stop, duration, channel = (
        None if values.get(what) in (None, "") else values[what]
        for what in ("start", "stop", "duration", "channel")
    )
    if channel is not None:
        if not re.fullmatch("[0-9]+", str(channel)):
            raise BadRecord(f"channel must be a whole number, 0 or more, not {abbreviate(channel)}")
        channel = int(channel)
    if start is None and stop is None:
        return Segment(channel=channel)
    first = float(start or 0)
    last = None if stop is None else float(stop)
    if last is None and duration is not None:
        last = first + float(duration)
    if not 0 <= first < (math.inf if last is None else last) or last == math.inf:
        raise BadRecord(f"invalid segment from {first} to {last} s")
    return Segment(first, last, channel)


def recording_states(table: Table) -> Any:
    segments = [str(segment) for segment in table.values("segment")]
    return table.columns["audio"].state(), table.rows.tolist(), segments


def add_headers(table: Table, progress: Progress) -> Table:
    audio, segments = (table.columns[name] for name in ("audio", "segment"))

    def header(row: int) -> tuple[float, str]:
        if isinstance(audio, SpokenColumn):
            return audio[row].seconds(), ""
        return header_seconds(partial(audio.file, row), segments[row])

    cache = cache_directory() / f"speech-seconds-{fingerprint(recording_states(table))}"
    if not is_cached(cache, progress):
        headers: list[tuple[float, str]] = []
        with ThreadPoolExecutor(THREADS) as threads:
            for start in range(0, len(table), STEP):
                headers += threads.map(header, table.rows[start : start + STEP].tolist())
                progress.update("reading headers of recordings", len(headers), len(table))
        with create_cached(cache) as directory:
            write_json(directory / "headers.json", headers)
    seconds, problems = np.zeros(len(audio)), [""] * len(audio)
    known = read_json(cache / "headers.json")
    for number, (length, problem) in zip(table.rows.tolist(), known, strict=True):
        seconds[number], problems[number] = length, problem
    return replace(table, columns={**table.columns, "seconds": seconds, "problem": problems})


def places(table: Table) -> Iterator[tuple[str, Segment]]:
    """Yield (recording, segment) for each utterance; the recording is an absolute path."""
    names = map(table.columns["audio"].name, table.rows.tolist())
    return zip(map(os.path.abspath, names), table.values("segment"), strict=True)


def _fit_to_train(
    table: Table, validated: set[tuple[str, Segment]], config: SpeechDataConfig, counts: Counts
) -> tuple[Table, list[tuple[str, str]]]:
    """Return the utterances to train on, and each excluded utterance's id and reason."""
    excluded, kept = [], []
    for number, place in enumerate(places(table)):
        row = table[number]
        seconds = float(row["seconds"])
        reasons = {
            row["problem"]: bool(row["problem"]),
            EMPTY: not row["text"],
            TOO_LONG: seconds > config.max_duration,
            NO_FRAMES: seconds * 1000 < config.features.frame_length,
            TOO_MUCH_TEXT: len(row["text"]) > config.max_text_rate * seconds,
            ALSO_VALIDATED: place in validated,
        }
        why = next((reason for reason, holds in reasons.items() if holds), None)
        if why is None:
            kept.append(number)
        else:
            excluded.append((row["id"], why))
            counts[why] += 1
    counts[KEPT] = len(kept)
    return table.take(np.array(kept, np.int64)), excluded


def open_source(
    source: str, config: SpeechDataConfig, seed: int, progress: Progress
) -> dict[str, Reader]:
    found = find_source(source)
    if found.kind == "builtin":
        check_builtin(found, NAMES, "speech")
        return {
            name: lambda _, name=name: synthetic_table(found.name, config, seed, name == "train")
            for name in ("train", "validation")
        }
    if found.kind == "hf":
        names = [found.split] if found.split else HubDataset(found).splits(found.config)
        return {
            name: lambda _, name=name: read_hub(replace(found, split=name))["train"]
            for name in names
        }
    path = existing_path(source)
    if has_ending(path, RECORDS):
        return table_splits(path)
    if shards := find_shards(path):
        return {
            name: lambda counts, own=own: read_shards(own, counts, progress)
            for name, own in shards_by_split(path, shards).items()
        }
    if path.is_file():
        raise ValueError(f"Unsupported source {path}. {SUPPORTED}")
    return folder_splits(path)


def table_splits(path: Path) -> dict[str, Reader]:
    file_counts = Counts()
    parts = by_split(read_file(path, file_counts), file_counts)

    def read(part: Table, counts: Counts) -> Table:
        counts.update(file_counts)
        # Otherwise, every split of a file would count the file's problems again.
        file_counts.clear()
        file_counts.named.clear()
        return part

    return {name: partial(read, part) for name, part in parts.items()}


def folder_splits(folder: Path) -> dict[str, Reader]:
    files = list(walk_files(folder))
    places: dict[str, list[Path]] = {}
    here = folder.resolve().name
    if kaldi := [file.parent for file in files if file.name == WAV_SCP]:
        # Without nested folders, such as Kaldi's copies for its jobs (split8/1).
        for inner in kaldi:
            if not {*inner.parents} & {*kaldi}:
                name = inner.relative_to(folder).as_posix()
                places[here if name == "." else name] = [inner]
        read = kaldi_rows
    elif chapters := [file for file in files if file.name.endswith(TRANSCRIPTS)]:
        for file in chapters:  # SPLIT/SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt
            above = [here, *file.relative_to(folder).parts[:-3]]
            places.setdefault(above[-1], []).append(file)
        read = librispeech_rows
    elif is_ljspeech(folder):
        places[here], read = [folder / LJSPEECH], ljspeech_rows
    elif lists := [file for file in files if file.parent == folder and has_ending(file, RECORDS)]:
        for file in lists:
            places.setdefault(unpacked_name(file).rpartition(".")[0], []).append(file)
        for one, other, *_ in (own for own in places.values() if len(own) > 1):
            raise ValueError(f"two files for one split: {one} and {other}. Keep one.")
        if len(lists) > 1:
            return {name: partial(read_file, own) for name, (own,) in places.items()}
        parts = table_splits(lists[0])
        return parts if len(parts) > 1 else dict(zip(places, parts.values(), strict=True))
    else:
        present = {*files}
        for file in files:
            if file.suffix.lower() in AUDIO_ENDINGS and transcript_of(file) in present:
                above = file.relative_to(folder).parts[:-1]
                name = next((part for part in above if split_of(part)), here)
                places.setdefault(name, []).append(file)
        read = paired_rows
    if not places:
        raise ValueError(
            f"no transcripts in {folder}. Give LibriSpeech (*{TRANSCRIPTS}), Kaldi ({WAV_SCP}), "
            f"LJSpeech ({LJSPEECH} beside {WAVS}/), tables ({', '.join(RECORDS)}), tar shards, "
            "parquet files, or recordings with .txt files of the same name."
        )
    return {name: partial(folder_table, own, read, folder) for name, own in places.items()}


def folder_table(
    places: Sequence[Path],
    read: Callable[[Path, Counts], Iterable[Record]],
    root: Path,
    counts: Counts,
) -> Table:
    rows = [row for place in places for row in read(place, counts)]
    columns = {name: [row.get(name) for row in rows] for name in ROW}
    columns["audio"] = [str(path).removeprefix(f"{root}/") for path in columns["audio"]]
    return table_of_columns(columns, str(root), root)


def librispeech_rows(path: Path, counts: Counts) -> Iterator[Record]:
    """Yield a chapter's utterances, given the path of the transcripts.

    A line "SPEAKER-CHAPTER-NUMBER text" transcribes SPEAKER-CHAPTER-NUMBER.flac.
    """
    files = sorted(path.parent.iterdir())
    recordings = {file.stem: file for file in files if file.suffix.lower() in AUDIO_ENDINGS}
    for line in read_lines(path, counts):
        id, _, text = line.strip().partition(" ")
        if id:
            audio = recordings.get(id, path.parent / f"{id}.flac")
            yield {"audio": audio, "text": text, "id": id, "speaker": id.partition("-")[0]}


def is_ljspeech(folder: Path) -> bool:
    path = folder / LJSPEECH
    is_there = path.is_file() and (folder / WAVS).is_dir()
    return is_there and "|" in next(read_lines(path, Counts()), "")


def ljspeech_rows(path: Path, counts: Counts) -> Iterator[Record]:
    """Yield the utterances of LJSpeech's metadata.csv.

    A line "ID|text|normalised text" describes wavs/ID.wav. The transcript is the last column.
    """
    for line in read_lines(path, counts):
        id, *texts = line.strip().split("|")
        if id:
            audio = path.parent / WAVS / f"{id}.wav"
            yield {"audio": audio, "text": texts[-1] if texts else None, "id": id}


def transcript_of(path: Path) -> Path:
    upper = path.with_suffix(".TXT")
    return upper if upper.is_file() else path.with_suffix(".txt")


def paired_rows(path: Path, counts: Counts) -> Iterator[Record]:
    try:
        with guarded():
            text = " ".join(read_lines(transcript_of(path), counts))
            # In TIMIT, the numbers of the first and of the last sample precede the text.
            if any(path.with_suffix(end).is_file() for end in (".phn", ".PHN")):
                text = re.sub(r"^\d+ \d+ ", "", text)
    except BadRecord as error:
        counts.record(MALFORMED, str(path), str(error))
    else:
        yield {"audio": path, "text": text}


def kaldi_rows(folder: Path, counts: Counts) -> Iterator[Record]:
    """Yield the utterances of a Kaldi data folder; count utterances without audio or text.

    Commands in wav.scp are not run. For `flac -c -d -s FILE |`, FILE is read directly.
    """
    if not (folder / "text").is_file():
        raise ValueError(f"{folder} has a {WAV_SCP} but no file named text (the transcripts)")
    texts, places = (_by_first_word(folder / name, counts) for name in ("text", WAV_SCP))
    speakers, cuts = (_by_first_word(folder / name, counts) if (folder / name).is_file() else {}
                      for name in ("utt2spk", "segments"))  # fmt: skip

    def audio(place: tuple[str, str]) -> tuple[str, Path]:
        path = place[1]
        if path.endswith("|"):
            words = [w for w in shlex.split(path[:-1]) if w.lower().endswith(AUDIO_ENDINGS)]
            if len(words) != 1:
                raise BadRecord(f"the command names {len(words)} recordings, not one")
            counts[COMMANDS] += 1
            path = words[0]
        inside = folder / path
        return place[0], inside if os.path.exists(inside) else Path(path).absolute()

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
