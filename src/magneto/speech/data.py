"""Utterances of any source, as splits that are read by number.

How they are used::

    splits = load_speech(config, seed, progress)     # reads headers; decodes nothing
    split = splits.train
    len(split), split.ids[3], split.texts[3]
    split.sound(3)                                   # samples, and what is wrong with them

A source is a table with a column of sound and one of text: a file of records, tar shards, parquet
and the hub by `magneto.data.formats`. A folder is LibriSpeech's, Kaldi's, one of tables (Common
Voice's has its recordings in clips/), or one of recordings with a .txt beside each: each layout is
a function from its files to rows. What is wrong
with a recording is left out of training, and counted; nothing is left out of validation: what can't
be read counts there as not recognised.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from magneto.config import nearest, shown
from magneto.data.cache import cache_directory, content_digest, fingerprint, is_kept, made_whole
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
    VALIDATED,
    HubDataset,
    check_builtin,
    find_source,
    hash_of,
    split_of,
)
from magneto.data.table import Table, by_split, hold_out, whole_table
from magneto.files import read_json, write_json
from magneto.progress import SILENT, Progress
from magneto.speech.audio import NO_FRAMES, Sound, Stretch, header_seconds, read_sound
from magneto.speech.config import NAMES, SpeechDataConfig
from magneto.speech.synthetic import SpokenColumn, synthetic_table

# What is counted of a split.
READ, KEPT = "read", "utterances"
TOO_LONG = "too long"
TOO_MUCH_TEXT = "with more text than the time allows"
BEYOND_LIMIT = "beyond the limit"
ALSO_VALIDATED = "left out of training, as they are validated on"
# What is known of an utterance beside its sound; and the columns of a source that say more of it.
COLUMNS = ("id", "text", "speaker", "stretch")
OTHERS = ("id", "speaker", "start", "stop", "duration", "channel")
# Of Common Voice, where its tables' recordings lie.
CLIPS = "clips"
# Headers are read by several threads, since it is waiting for the disk that takes long; so many
# rows between two reports of progress.
THREADS, STEP = 8, 256
NO_TEXT = "utterances without a line in text"
NO_RECORDING = "utterances without a recording in wav.scp"
COMMANDS = "recordings behind a command, whose file is read instead"
# How folders are known.
TRANSCRIPTS = ".trans.txt"
WAV_SCP = "wav.scp"
# What functions from files to rows say of an utterance.
ROW = ("audio", "text", "id", "speaker", "start", "stop")

Reader = Callable[[Counts], Table]
"""Reads a split; told of what is left out."""


@dataclass(frozen=True)
class Utterances:
    """A split: its utterances, each read when it is asked for.

    Attributes:
        table: With columns "audio", "text", "id", "speaker" and "stretch" (what is heard of the
            recording), "seconds" by its header, 0 where nothing could be learnt, and "problem",
            what is wrong with it as far as headers tell.
        sample_rate: To which they are brought, in Hz.
    """

    table: Table
    sample_rate: int

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def ids(self) -> list[str]:
        """Their names."""
        return self.table.values("id")

    @cached_property
    def texts(self) -> list[str]:
        """What is said in each."""
        return self.table.values("text")

    @property
    def seconds(self) -> np.ndarray:
        """How long each is, by its header."""
        return self.table.values("seconds")

    def sound(self, number: int) -> Sound:
        """Read an utterance; never raises for what is wrong with it."""
        row, audio = int(self.table.rows[number]), self.table.columns["audio"]
        if isinstance(audio, SpokenColumn):
            return audio[row].sound(self.sample_rate)
        stretch = self.table.columns["stretch"][row]
        return read_sound(partial(audio.file, row), self.sample_rate, stretch)


@dataclass(frozen=True)
class SpeechSplits:
    """What a recipe trains and validates on.

    Attributes:
        train: Training utterances, without those that headers and transcripts show to be wrong.
        validation: Validation utterances, all of them.
        counts: What was met in each split, by its name.
        excluded: Id, and why, of each utterance that is left out of training.
    """

    train: Utterances
    validation: Utterances
    counts: dict[str, Counts]
    excluded: list[tuple[str, str]]

    @cached_property
    def digest(self) -> str:
        """A name for the content of both."""
        return content_digest(
            *(each.table.digest.encode() for each in (self.train, self.validation))
        )

    def describe(self, source: str) -> list[str]:
        """Say in lines what there is and what was left out; nothing of a split that has nothing."""
        splits = {"train": self.train, "validation": self.validation}
        return [
            f"{source}, {name}: {self.counts[name].describe(KEPT, READ)}, "
            f"{split.seconds.sum() / 3600:.2f} hours"
            for name, split in splits.items()
            if self.counts[name][READ]
        ]


def load_speech(config: SpeechDataConfig, seed: int, progress: Progress = SILENT) -> SpeechSplits:
    """Find the utterances of a source and divide them.

    Args:
        config: Of the data. Where both its sources are one, all of it is to measure on.
        seed: Of built-in training sets.
        progress: Shows that headers are read, which is done once.

    Raises:
        FileNotFoundError: If there is no such source.
        ValueError: If a split is not there, or has no utterances.
    """
    counts = {"train": Counts(), "validation": Counts()}
    there = open_source(config.source, config, seed, progress)
    other = there
    names = config.validation_splits or named(there, "validation")
    if config.validation_source is not None:
        if config.validation_source != config.source:
            other = open_source(config.validation_source, config, seed, progress)
        kinds = (named(other, kind) for kind in VALIDATED)
        names = config.validation_splits or next(found for found in kinds if found)
    validation = read_utterances(other, names, config, counts["validation"]) if names else None
    if validation is not None and config.validation_source == config.source:
        train = validation.take(np.zeros(0, np.int64))
    else:
        chosen = config.train_splits or named(there, "train")
        train = read_utterances(there, chosen, config, counts["train"])
    if validation is None:
        by_speaker = config.hold_out == "speaker" and len(set(train.values("speaker"))) > 1
        key = "speaker" if by_speaker else "id"
        train, validation = hold_out(train, config.validation_fraction, key, counts["train"])
        counts["train"][READ] -= len(validation)
        counts["validation"][READ] = len(validation)
    limit = config.validation_limit
    if limit is not None and len(validation) > limit:
        counts["validation"][BEYOND_LIMIT] = len(validation) - limit
        places = np.array([hash_of(id) for id in validation.values("id")], np.uint64)
        validation = validation.take(np.sort(np.argsort(places, kind="stable")[:limit]))
    train, validation = (with_headers(table, progress) for table in (train, validation))
    counts["validation"][KEPT] = len(validation)
    counts["validation"].update(problem for problem in validation.values("problem") if problem)
    train, excluded = _fit_to_train(train, validation, config, counts["train"])
    found = {"validation": validation, "train": train}
    for name, table in found.items():
        only_measured = name == "train" and config.validation_source == config.source
        if not len(table) and not only_measured:
            source = config.validation_source if name == "validation" else None
            raise ValueError(f"{source or config.source} has no {name} utterances: "
                             f"{counts[name].describe(KEPT, READ)}")  # fmt: skip
    rate = config.sample_rate
    return SpeechSplits(Utterances(train, rate), Utterances(validation, rate), counts, excluded)


def named(there: Mapping[str, Any], wanted: str) -> tuple[str, ...]:
    """Return the names of splits for "train", "validation" or "test".

    A single split is for training, and so are those whose names say nothing if none says "train".
    """
    # A folder within another ("data/dev") tells by any part of its place.
    kinds = {name: split_of(name) for name in there}
    if len(kinds) == 1:
        kinds = dict.fromkeys(kinds, "train")
    elif "train" not in kinds.values():
        kinds = {name: kind or "train" for name, kind in kinds.items()}
    return tuple(name for name, kind in kinds.items() if kind == wanted)


def read_utterances(
    there: Mapping[str, Reader], names: Sequence[str], config: SpeechDataConfig, counts: Counts
) -> Table:
    """Return the utterances of some splits of a source as one table.

    Raises:
        ValueError: If one is not there, or they have no utterances.
    """
    for name in names:
        if name not in there:
            known = ", ".join(there)
            raise ValueError(f"no split {name!r}{nearest(name, [*there])} (there is {known})")
    tables = [utterance_table(there[name](counts), config, counts) for name in names]
    if not any(map(len, tables)):
        raise ValueError(f"no utterances in {tables[0].where}{counts.describe()}")
    if len(tables) == 1:
        return tables[0]
    audio = [table.columns["audio"] for table in tables]
    if not all(isinstance(column, Files) for column in audio):
        raise ValueError(f"splits {', '.join(names)} are not of one folder: name one of them")
    columns = {name: [v for t in tables for v in t.values(name)] for name in COLUMNS}
    files = [each.names[n] for each, t in zip(audio, tables, strict=True) for n in t.rows.tolist()]
    return whole_table({"audio": Files(audio[0].root, files), **columns}, tables[0].where)


def utterance_table(table: Table, config: SpeechDataConfig, counts: Counts) -> Table:
    """Return the utterances of a table: columns "audio" and `COLUMNS`.

    Records that make no utterance are counted, and left out.

    Raises:
        ValueError: If there is no column of sound, or none of text.
    """
    media = [name for name, column in table.columns.items() if isinstance(column, MediaColumn)]
    audio = table.find("audio", config.audio_column, media) or next(iter(media), None)
    text = table.find("text", config.text_column)
    if audio is None or text is None:
        raise table.no_column(*("audio", "text") if audio is None else ("text", "audio"))
    sound, texts = media_column(table, audio), table.columns[text]
    if isinstance(sound, Files) and (sound.root / CLIPS).is_dir():  # Common Voice's
        names = [name if "/" in name or not name else f"{CLIPS}/{name}" for name in sound.names]
        sound = Files(sound.root, names)
    others = {what: table.columns[name] for what in OTHERS if (name := table.find(what))}
    change: Callable[[str], str] = {"keep": str, "lower": str.lower, "upper": str.upper}[
        config.text_case
    ]
    present = sound.present()
    columns: dict[str, list[Any]] = {name: [None] * len(sound) for name in COLUMNS}

    def read(number: int) -> int:
        if not present[number] or not isinstance(texts[number], str):
            raise BadRecord("no sound, or no text")
        said = {what: column[number] for what, column in others.items()}
        stretch = stretch_of(said)
        name = str(PurePath(sound.key(number)).with_suffix(""))
        name += "" if stretch.stop is None else f"-{stretch.start:.2f}"
        id, speaker = (said.get(what) for what in ("id", "speaker"))
        id = name if id in (None, "") else str(id)
        speaker = id if speaker in (None, "") else str(speaker)
        values = (id, " ".join(change(texts[number]).split()), speaker, stretch)
        for column, value in zip(columns.values(), values, strict=True):
            column[number] = value
        return number

    kept = list(read_each(table.rows.tolist(), read, counts, f"{table.where}, record"))
    counts[READ] += len(kept)
    rows = np.array(kept, np.int64)
    return replace(table, columns={"audio": sound, **columns}, rows=rows)


def stretch_of(said: Mapping[str, Any]) -> Stretch:
    """Return what is heard of a recording; a length alone is that of the file.

    Raises:
        BadRecord: If start and stop, in seconds, are no stretch, or the channel is no whole number.
        ValueError: If they are no numbers.
    """
    start, stop, duration, channel = (
        None if said.get(what) in (None, "") else said[what]
        for what in ("start", "stop", "duration", "channel")
    )
    if channel is not None:
        if not re.fullmatch("[0-9]+", str(channel)):
            raise BadRecord(f"channel {shown(channel)} is no whole number from 0")
        channel = int(channel)
    if start is None and stop is None:
        return Stretch(channel=channel)
    first = float(start or 0)
    last = None if stop is None else float(stop)
    if last is None and duration is not None:
        last = first + float(duration)
    if not 0 <= first < (math.inf if last is None else last) or last == math.inf:
        raise BadRecord(f"no stretch of sound goes from {first} to {last} s")
    return Stretch(first, last, channel)


def state_of(table: Table) -> Any:
    """Return plain values that name the recordings of a table, and change with them."""
    stretches = [str(stretch) for stretch in table.values("stretch")]
    return table.columns["audio"].state(), table.rows.tolist(), stretches


def with_headers(table: Table, progress: Progress) -> Table:
    """Return a table with "seconds" and "problem" of its recordings, by their headers.

    They are read once, and kept in the cache; a file that has changed is read anew.
    """
    audio, stretches = (table.columns[name] for name in ("audio", "stretch"))

    def header(row: int) -> tuple[float, str]:
        if isinstance(audio, SpokenColumn):
            return audio[row].seconds(), ""
        return header_seconds(partial(audio.file, row), stretches[row])

    held = cache_directory() / f"speech-seconds-{fingerprint(state_of(table))}"
    if not is_kept(held, progress):
        found: list[tuple[float, str]] = []
        with ThreadPoolExecutor(THREADS) as threads:
            for start in range(0, len(table), STEP):
                found += threads.map(header, table.rows[start : start + STEP].tolist())
                progress.update("reading headers of recordings", len(found), len(table))
        with made_whole(held) as aside:
            write_json(aside / "headers.json", found)
    seconds, problems = np.zeros(len(audio)), [""] * len(audio)
    known = read_json(held / "headers.json")
    for number, (length, problem) in zip(table.rows.tolist(), known, strict=True):
        seconds[number], problems[number] = length, problem
    return replace(table, columns={**table.columns, "seconds": seconds, "problem": problems})


def _fit_to_train(
    table: Table, validation: Table, config: SpeechDataConfig, counts: Counts
) -> tuple[Table, list[tuple[str, str]]]:
    """Leave out what can't be trained on, and what is validated on; return id and why of these."""

    def places(table: Table) -> Iterator[tuple[str, Stretch]]:
        names = map(table.columns["audio"].name, table.rows.tolist())
        return zip(names, table.values("stretch"), strict=True)

    validated = set(places(validation))
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
    """Return what reads each split of a source, by the split's own name; nothing is read yet.

    Raises:
        FileNotFoundError: If there is no such path; names the nearest.
        ValueError: If a name is unknown, or there is nothing to read at the path.
    """
    found = find_source(source)
    if found.kind == "builtin":
        check_builtin(found, NAMES, "speech")
        return {
            name: lambda _, name=name: synthetic_table(found.name, config, seed, name == "train")
            for name in ("train", "validation")
        }
    if found.kind == "hf":
        one = found.split or found.name.endswith(".parquet")
        names = [found.split] if one else HubDataset(found).splits(found.config)
        return {
            name or "train": lambda _, name=name: read_hub(replace(found, split=name))["train"]
            for name in names
        }
    path = existing_path(source)
    if has_ending(path, RECORDS):
        return one_table(path)
    if shards := find_shards(path):
        return {
            name: lambda counts, own=own: read_shards(own, counts, progress)
            for name, own in shards_by_split(path, shards).items()
        }
    if path.is_file():
        raise ValueError(f"{path} is no set of examples: {SUPPORTED}")
    return folder_splits(path)


def one_table(path: Path) -> dict[str, Reader]:
    """Return what reads each split of a file of records, by its column "split" if it has one."""
    met = Counts()
    parts = by_split(read_file(path, met), met)

    def read(name: str, counts: Counts) -> Table:
        counts.update(met)
        met.clear()  # told once
        return parts[name]

    return {name: partial(read, name) for name in parts}


def folder_splits(folder: Path) -> dict[str, Reader]:
    """Return what reads each split of a folder of files.

    Raises:
        ValueError: If its files are none of the layouts.
    """
    files = list(walk_files(folder))
    places: dict[str, list[Path]] = {}
    here = folder.resolve().name
    if kaldi := [file.parent for file in files if file.name == WAV_SCP]:
        # Not folders that lie in another, as Kaldi's copies for its jobs (split8/1).
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
    elif lists := [file for file in files if file.parent == folder and has_ending(file, RECORDS)]:
        for file in lists:
            places.setdefault(unpacked_name(file).rpartition(".")[0], []).append(file)
        for one, other, *_ in (own for own in places.values() if len(own) > 1):
            raise ValueError(f"two files for one split: {one} and {other}; keep one")
        return {name: partial(read_file, own) for name, (own,) in places.items()}
    else:
        there = {*files}
        for file in files:
            if file.suffix.lower() in AUDIO_ENDINGS and file.with_suffix(".txt") in there:
                top = file.relative_to(folder).parts[0]  # maybe that of a split
                name = top if file.parent != folder and split_of(top) else here
                places.setdefault(name, []).append(file)
        read = beside_rows
    if not places:
        raise ValueError(
            f"no transcripts in {folder}: no *{TRANSCRIPTS} (LibriSpeech), {WAV_SCP} (Kaldi), "
            f"table ({', '.join(RECORDS)}), shards, parquet files, or .txt beside recordings"
        )
    return {name: partial(table_below, own, read, folder) for name, own in places.items()}


def table_below(
    places: Sequence[Path],
    read: Callable[[Path, Counts], Iterable[Record]],
    root: Path,
    counts: Counts,
) -> Table:
    """Return what is read of some files, or folders, as one table with paths below the root."""
    rows = [row for place in places for row in read(place, counts)]
    columns = {name: [row.get(name) for row in rows] for name in ROW}
    columns["audio"] = [str(path).removeprefix(f"{root}/") for path in columns["audio"]]
    return whole_table(columns, str(root), root)


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
