"""Parallel text wherever it lies: line pairs, tables, objects, Parquet, the hub, built in.

And which of its pairs of sentences a recipe trains on, validates on and is scored on.

A source has parts, each of one split and of two languages or more, which are streamed. Lines end at
a line feed and nowhere else, so that files stay aligned.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, partial
from itertools import combinations, islice, zip_longest
from pathlib import Path
from typing import Any

from magneto.config import ConfigError, nearest
from magneto.data.cache import file_states, fingerprint
from magneto.data.files import (
    RECORDS,
    has_ending,
    is_table,
    read_lines,
    stream_records,
    unpacked_name,
    walk_files,
)
from magneto.data.problems import (
    EMPTY,
    HALF_CHARACTERS,
    INVALID_UTF8,
    LONG_LINES,
    MALFORMED,
    OTHER_SPLITS,
    BadRecord,
    Counts,
    listed,
    read_each,
)
from magneto.data.sources import (
    VALIDATED,
    HubDataset,
    Source,
    check_builtin,
    find_source,
    hash_of,
    held_below,
    hub_files,
    named_splits,
    split_of,
    split_of_record,
)
from magneto.files import nearest_path, user_path
from magneto.translation.config import (
    DUPLICATE,
    HELD_OUT,
    READ,
    UNLIKE,
    ParallelDataConfig,
    Texts,
    sought_languages,
    split_direction,
)
from magneto.translation.phrases import PHRASES, import_babel, phrase_languages, phrases

Pair = tuple[str, str]
"""Codes of two languages."""
LANGUAGE = re.compile(r"[a-z]{2,3}([-_][A-Za-z0-9]{2,8})*")
# Endings of two or three letters that are no languages.
NO_LANGUAGES = (
    "csv", "htm", "ini", "js", "log", "md", "out", "pdf", "png", "py", "rst", "sgm", "tgz", "tmp",
    "tmx", "tsv", "xml", "xz", "yml", "zip",
)  # fmt: skip
LACKING = "records without both languages"
# Sides that differ by fewer characters or bytes are never of unlike length.
SLACK = 20
# Which part of a test set is read: the first of these that it has.
TESTED = ("test", "validation", "train")


@dataclass(frozen=True)
class Part:
    """Text of one split in two languages or more.

    Attributes:
        split: "train", "validation" or "test".
        languages: Their codes.
        read: From two of them and counts to the sentences in these, in that order.
    """

    split: str
    languages: frozenset[str]
    read: Callable[[str, str, Counts], Iterator[Texts]]


@dataclass(frozen=True)
class ParallelText:
    """All text of a source.

    Attributes:
        parts: That it has.
        wanted: Languages to use; None for all.
    """

    parts: list[Part]
    wanted: tuple[str, ...] | None = None

    @property
    def languages(self) -> list[str]:
        """Codes of the languages there are, sorted, whether they are wanted or not."""
        return sorted({name for part in self.parts for name in part.languages})

    def pairs(self, split: str) -> set[Pair]:
        """Return the pairs of wanted languages, each sorted, that a split has."""
        of_split = [part.languages for part in self.parts if part.split == split]
        named = [names if self.wanted is None else names & {*self.wanted} for names in of_split]
        return {pair for names in named for pair in combinations(sorted(names), 2)}

    def read(self, first: str, second: str, split: str, counts: Counts) -> Iterator[Texts]:
        """Yield the sentences of two languages, in that order; what is odd is counted.

        Raises:
            ValueError: If two files have different numbers of lines, or one is damaged.
        """
        for part in self.parts:
            if part.split == split and {first, second} <= part.languages:
                yield from part.read(first, second, counts)


def open_parallel(
    source: str, wanted: tuple[str, ...] | None, sought: frozenset[str] = frozenset()
) -> ParallelText:
    """Open a source of parallel text.

    Args:
        source: PATH, hf:NAME or builtin:phrases[:CODES].
        wanted: Codes of the languages to use, or None for all.
        sought: Languages, of which a folder's line pairs must have one to be read before records.

    Raises:
        FileNotFoundError: If there is no such path; names the nearest.
        ValueError: If a name is unknown, or there is no parallel text at the path.
    """
    found = find_source(source)
    if found.kind == "builtin":
        name, _, codes = found.name.partition(":")
        check_builtin(replace(found, name=name), ("phrases",), "parallel text")
        return built_in(wanted or tuple(codes.split(",") if codes else ()) or None)
    if found.kind == "hf":
        return ParallelText(hub_parts(found, wanted), wanted)
    lines, records = find_files(source, wanted, sought)
    parts = [
        Part(split_below(source, Path(stem)), frozenset(files), partial(aligned, files))
        for stem, files in lines.items()
    ]
    for path in records:
        parts += record_parts(path, split_below(source, path))
    return ParallelText(parts, wanted)


def split_below(source: str, path: Path) -> str:
    """Return the split that a file's name tells, or its folder's in the source; or "train"."""
    root = user_path(source)
    name = str(path.relative_to(root)) if root in path.parents else path.name
    return split_of(name) or "train"


def parallel_fingerprint(
    source: str, wanted: tuple[str, ...] | None, sought: frozenset[str]
) -> str:
    """Name the content of a source: files by their states, others by name."""
    found = find_source(source)
    if found.kind == "builtin":
        return fingerprint(source, PHRASES, import_babel().__version__)
    if found.kind == "hf":
        return fingerprint(source, file_states(hub_files(found)))
    lines, records = find_files(source, wanted, sought)
    files = [path for group in lines.values() for path in group.values()]
    return fingerprint("", file_states(sorted(files + records)))


def built_in(wanted: tuple[str, ...] | None) -> ParallelText:
    """Return Babel's phrases; nothing is held out beforehand."""
    known = phrase_languages()
    if unknown := sorted(set(wanted or ()) - set(known)):
        hint = nearest(unknown[0], known)
        raise ValueError(f"builtin:phrases has no {unknown[0]!r}{hint} (it has {', '.join(known)})")
    part = Part("train", frozenset(known), lambda first, second, counts: phrases(first, second))
    return ParallelText([part], wanted)


def find_files(
    source: str, wanted: tuple[str, ...] | None, sought: frozenset[str]
) -> tuple[dict[str, dict[str, Path]], list[Path]]:
    """Return the line pairs, or the files of records, of a file, a folder, or a stem.

    Records are read only where there are no line pairs, or none in a language of `sought`.

    Raises:
        FileNotFoundError: If there is nothing; names the nearest path.
        ValueError: If there are files, and none is parallel text, or one is there twice.
    """
    path = user_path(source)
    folder, beside = os.path.isdir(path), path.parent if os.path.isdir(path.parent) else Path(".")
    if os.path.isfile(path):
        files = [path]
    else:
        there = walk_files(path) if folder else beside.glob(f"{glob.escape(path.name)}.*")
        files = sorted(file for file in there if os.path.isfile(file))
    records = [file for file in files if has_ending(file, RECORDS)]
    lines = line_pairs(files, sought | {*(wanted or ())})
    if lines and (not (sought and records) or any(sought & {*group} for group in lines.values())):
        return lines, []
    if records:
        return {}, records
    wants = f"a.en beside an a.de, or a file that ends in {', '.join(RECORDS)}"
    if os.path.isfile(path):
        raise ValueError(f"{path} alone is no parallel text: give the stem of line pairs (a for "
                         f"{wants}")  # fmt: skip
    if folder:
        raise ValueError(f"no parallel text in {source}: it needs {wants}")
    raise FileNotFoundError(f"no parallel text {source}{nearest_path(path)}")


def line_pairs(files: Iterable[Path], named: frozenset[str]) -> dict[str, dict[str, Path]]:
    """Return files of a sentence a line, STEM.LANGUAGE[.txt], by stem and language.

    Stems that differ in a last word "src" or "ref" only are one, as WMT names its test sets.

    Args:
        files: Of which some may be such files.
        named: Endings that are languages, whatever they look like.

    Raises:
        ValueError: If there are two files for one text, such as a.en and a.en.gz.
    """
    groups: dict[str, dict[str, list[Path]]] = {}
    for file in files:
        whole, dot, language = unpacked_name(file).removesuffix(".txt").rpartition(".")
        code = LANGUAGE.fullmatch(language) and language not in NO_LANGUAGES
        if dot and (code or language in named):
            stem = re.sub(r"(^|[._-])(src|ref)$", "", whole)
            groups.setdefault(str(file.parent / stem), {}).setdefault(language, []).append(file)
    groups = {stem: found for stem, found in groups.items() if len(found) > 1}
    for one, other, *_ in (p for found in groups.values() for p in found.values() if len(p) > 1):
        raise ValueError(f"two files for one text: {one} and {other}; keep one")
    return {stem: {name: paths[0] for name, paths in found.items()}
            for stem, found in groups.items()}  # fmt: skip


def aligned(files: dict[str, Path], first: str, second: str, counts: Counts) -> Iterator[Texts]:
    """Yield the lines of two files, side by side."""
    one, other = files[first], files[second]
    pairs = zip_longest(read_lines(one, counts), read_lines(other, counts))
    for number, (left, right) in enumerate(pairs):
        if left is None or right is None:
            longer, shorter = (one, other) if right is None else (other, one)
            raise ValueError(f"{longer} has more lines than {shorter}, which has {number}: "
                             "they are not aligned")  # fmt: skip
        one_line, other_line = (
            line.removesuffix("\n").removesuffix("\r") for line in (left, right)
        )
        yield one_line, other_line


def record_parts(path: Path, split: str) -> list[Part]:
    """Return a file of records; it is read through to find its languages, but for a table.

    A file whose name tells no other split has a part for each that its records name.

    Raises:
        ValueError: If a table does not name two languages in its first line.
    """
    if is_table(path):
        names = set(sentences(next(stream_records(path, Counts()), {})))
        if len(names) < 2:
            raise ValueError(f"{path} does not say its languages: write a first line that does, "
                             "such as en<TAB>de")  # fmt: skip
    else:
        names = {code for record in stream_records(path, Counts(), sentences) for code in record}

    def read(own: str | None, first: str, second: str, counts: Counts) -> Iterator[Texts]:
        def of_split(record: Any) -> dict[str, str] | None:
            split = split_of_record(record) if own else None
            if own == "train" and split is None:
                counts[OTHER_SPLITS] += 1
            return several(record) if split == own else None

        return of_languages(stream_records(path, counts, of_split), first, second, counts)

    named = sorted(named_splits([path])) if split == "train" else []
    parts = [(own, own) for own in named] or [(split, None)]
    return [Part(name, frozenset(names), partial(read, own)) for name, own in parts]


def hub_parts(source: Source, wanted: tuple[str, ...] | None) -> list[Part]:
    """Return the parts of a data set of the hub, or of Parquet files.

    Its configurations are pairs of languages (as of OPUS-100: af-en, am-en, ...), or its records
    hold several languages.
    """
    dataset, parts = HubDataset(source), []

    def read(config: str, split: str, first: str, second: str, counts: Counts) -> Iterator[Texts]:
        rows = dataset.load(config, split)
        return of_languages(
            read_each(rows, several, counts, f"{source}, row"), first, second, counts
        )

    for config in dataset.configs():
        names = frozenset(config.split("-"))
        if len(names) != 2 or not all(map(LANGUAGE.fullmatch, names)):
            split = next(iter(dataset.chosen_splits(config).values()))
            names = frozenset(sentences(next(dataset.stream(config, split), {})))
        if len(names) < 2:
            continue
        # Of a hundred configurations only those that are wanted are asked for their splits.
        is_wanted = wanted is None or len(names & {*wanted}) > 1
        splits = dataset.chosen_splits(config) if is_wanted else {"train": "train"}
        parts += [Part(name, names, partial(read, config, own)) for name, own in splits.items()]
    return parts


def of_languages(
    records: Iterable[dict[str, str]], first: str, second: str, counts: Counts
) -> Iterator[Texts]:
    """Yield the sentences of two languages; records without both are counted."""
    for record in records:
        if first in record and second in record:
            yield record[first], record[second]
        else:
            counts[LACKING] += 1


def several(record: Any) -> dict[str, str]:
    """Return the sentences of a record by language; raise BadRecord if it has less than two."""
    found = sentences(record)
    if len(found) < 2:
        raise BadRecord("no sentences in two languages")
    return found


def sentences(record: Any) -> dict[str, str]:
    """Return what a record has by language: of its "translation", else of itself."""
    inner = record.get("translation", record)
    if not isinstance(inner, dict):
        return {}
    return {k: v for k, v in inner.items() if LANGUAGE.fullmatch(k) and isinstance(v, str)}


class SplitText:
    """What a recipe trains and validates on, pair of languages by pair.

    Args:
        config: The recipe's.

    Attributes:
        trains: Whether anything is trained on: not where both sources are one.
        directions: From which language to which.
        pairs: Their pairs of languages, each sorted.

    Raises:
        FileNotFoundError: If there is no such source.
        ValueError: If it has no text for a direction or a language.
    """

    def __init__(self, config: ParallelDataConfig) -> None:
        self.config = config
        sought = sought_languages(config)
        self.text = open_parallel(config.source, config.languages, sought)
        # To evaluate a model on other text, both sources are that text: nothing is trained on.
        self.trains = config.source != config.validation_source
        there = {p for split in VALIDATED for p in self.text.pairs(split) if not self.trains}
        there |= self.text.pairs("train")
        self.directions = wanted_directions(config, there, self.text.languages)
        self.pairs = sorted({(min(d), max(d)) for d in self.directions})
        self.other: ParallelText | None = None
        if config.validation_source is not None:
            self.other = open_parallel(config.validation_source, config.languages, sought)
        self._held = cache(self._held_below)

    def texts(self, pair: Pair, split: str, counts: Counts, seen: set[int]) -> Iterator[Texts]:
        """Yield the pairs of a split that are not empty, of unlike length or seen before."""
        earlier = frozenset(seen)
        for texts in self.unfiltered(pair, split, counts):
            counts[READ] += 1
            if not (texts[0].strip() and texts[1].strip()):
                counts[EMPTY] += 1
                continue
            if unlike(texts, self.config.max_ratio):
                counts[UNLIKE] += 1
                continue
            key = hash_of("\0".join(texts))
            if key in seen:
                counts[HELD_OUT if key in earlier else DUPLICATE] += 1
                continue
            seen.add(key)
            yield texts

    def unfiltered(self, pair: Pair, split: str, counts: Counts) -> Iterator[Texts]:
        """Yield the pairs of "train" or "validation", as the sources divide them, or a hash."""
        if split == "train" and not self.trains:
            return
        if self.other is not None and split == "validation":
            own = next((s for s in VALIDATED if pair in self.other.pairs(s)), None)
            if own is not None:
                yield from self.other.read(*pair, own, counts)
        elif self.other is not None or pair in self.text.pairs("validation"):
            yield from self.text.read(*pair, split, counts)
        else:
            side, limit = self._held(pair)
            for texts in self.text.read(*pair, "train", counts):
                if (hash_of(texts[side]) < limit) == (split == "validation"):
                    yield texts

    def _held_below(self, pair: Pair) -> tuple[int, float]:
        """Return the side by whose hash sentences are held out, and the limit below which."""
        side, read = (
            int(pair[1] == self.config.pivot_language),
            self.text.read(*pair, "train", Counts()),
        )
        return side, held_below((texts[side] for texts in read), self.config.validation_fraction)


def wanted_directions(
    config: ParallelDataConfig, there: set[Pair], languages: Sequence[str]
) -> list[Pair]:
    """Return the directions to train: those given, or all with the pivot language.

    Text in two languages alone is translated both ways.

    Args:
        config: What is wanted.
        there: Pairs of those languages that the text has, each sorted.
        languages: All that the text has.
    """
    pivot, has = config.pivot_language, f"it has {', '.join(languages)}"
    if config.directions:
        given = list(map(split_direction, config.directions))
        if missing := [f"{a}-{b}" for a, b in given if (min(a, b), max(a, b)) not in there]:
            raise ValueError(f"{config.source} has no text for {', '.join(missing)}: {has}")
        return given
    others = [pair[pair[0] == pivot] for pair in sorted(there) if pivot in pair]
    gone = sorted({*(config.languages or ())} - {pivot, *others})
    if gone and pivot in languages:
        free = sorted({*languages} - {pivot, *others})
        raise ValueError(f"{config.source} has no text in {gone[0]} (data.languages) with {pivot} "
                         f"to train on{nearest(gone[0], free)} ({has})")  # fmt: skip
    if not there:
        raise ValueError(f"{config.source} has no text in two languages to train on: {has}")
    is_usual = config.languages is None and pivot == ParallelDataConfig.pivot_language
    if not others and len(there) == 1 and is_usual:
        ((one, other),) = there
        return [(one, other), (other, one)]
    if not others:
        one, other = min(there)
        raise ValueError(f"{config.source} has no text with {pivot} (data.pivot_language): {has}; "
                         f"give --data.pivot_language {one}, or --data.directions "
                         f"{one}-{other}")  # fmt: skip
    return [(pivot, other) for other in others] + [(other, pivot) for other in others]


def unlike(texts: Texts, ratio: float) -> bool:
    """Return whether one side is too long for the other, both in characters and in bytes.

    Scripts differ in both: Chinese has few characters, Tamil many bytes.
    """
    encoded = [text.encode("utf-8", errors="surrogatepass") for text in texts]
    for one, other in (map(len, texts), map(len, encoded)):
        short, long = sorted((one, other))
        if long <= ratio * short or long - short <= SLACK:
            return False
    return True


@dataclass(frozen=True)
class ReferenceTexts:
    """Whole sentences with references, as they were written: what a model is scored on.

    Attributes:
        split: The part of the source they are of.
        texts: By direction: the sentence to translate, and its translation.
        unknown: Languages of the source that the model does not know, left out.
        counts: What was met.
    """

    split: str
    texts: dict[Pair, list[Texts]]
    unknown: list[str]
    counts: Counts

    def describe(self) -> str:
        """Say how many sentences are scored, and what of them is odd."""
        total = sum(len(pairs) for pairs in self.texts.values())
        kinds = (INVALID_UTF8, HALF_CHARACTERS, LONG_LINES, MALFORMED)
        odd = [f"{self.counts[kind]:,} {kind}" for kind in kinds if self.counts[kind]]
        if self.unknown:
            odd.append(f"unknown to the model, left out: {', '.join(self.unknown)}")
        return "; ".join([f"{total:,} sentences", *odd])


def read_validation_texts(config: ParallelDataConfig, limit: int | None) -> ReferenceTexts:
    """Read what a recipe validates on, without its filters by length, up to a limit each."""
    made, counts = SplitText(config), Counts()
    if config.validation_limit is not None:
        limit = min(limit or config.validation_limit, config.validation_limit)
    texts = {}
    for direction in made.directions:
        read = made.texts((min(direction), max(direction)), "validation", counts, set())
        if found := [turned(each, direction) for each in islice(read, limit)]:
            texts[direction] = found
    return ReferenceTexts("validation", texts, [], counts)


def read_test_texts(
    source: str,
    config: ParallelDataConfig,
    known: Sequence[str],
    directions: Sequence[str] | None,
    limit: int | None,
) -> ReferenceTexts:
    """Read a test set: all of it, in its order, unfiltered; of several parts, its test part.

    Args:
        source: As in `ParallelDataConfig`.
        config: The recipe's, for the language in the middle and the directions.
        known: Languages that the model knows.
        directions: Such as en-de, instead of the recipe's.
        limit: Sentences per direction at most.

    Raises:
        FileNotFoundError: If there is no such source.
        ValueError: If it has nothing for a direction that was asked for, or none at all.
    """
    text = open_parallel(source, None, sought_languages(config))
    split = next((split for split in TESTED if text.pairs(split)), TESTED[0])
    there = text.pairs(split)
    both = {d for a, b in there for d in ((a, b), (b, a)) if {*d} <= {*known}}
    has = listed(sorted("-".join(pair) for pair in there)) or "nothing"
    has = f"it has {has}; the model knows {', '.join(known)}"
    if given := directions or config.directions:
        wanted = list(map(split_direction, given))
        missing = [f"{a}-{b}" for a, b in wanted if (a, b) not in both]
        if missing and directions:
            raise ValueError(f"{source} has no {split} text for {', '.join(missing)}: {has}")
    else:
        wanted = [d for d in both if config.pivot_language in d]
        wanted.sort(key=lambda d: (d[0] != config.pivot_language, d))
    counts, texts = Counts(), {}
    for direction in (d for d in wanted if d in both):
        read = text.read(min(direction), max(direction), split, counts)
        texts[direction] = [turned(each, direction) for each in islice(read, limit)]
    if not texts:
        raise ValueError(f"{source} has no {split} text for this model: {has}")
    unknown = sorted({name for pair in there for name in pair} - {*known})
    return ReferenceTexts(split, texts, unknown, counts)


def turned(texts: Texts, direction: Pair) -> Texts:
    """Return the sentences of a sorted pair of languages in the order of a direction."""
    return (texts[1], texts[0]) if direction[0] > direction[1] else texts


def chosen(texts: ReferenceTexts, directions: list[str] | None) -> ReferenceTexts:
    """Keep the directions that were asked for.

    Raises:
        ConfigError: If one of them is not there; names the nearest.
    """
    if directions is None:
        return texts
    wanted = {name: split_direction(name) for name in directions}
    if missing := [name for name, pair in wanted.items() if pair not in texts.texts]:
        there = ["-".join(pair) for pair in texts.texts]
        near = ", ".join(get_close_matches(missing[0], there, n=3, cutoff=0.0))
        line = f"--directions {', '.join(missing)}: not among the {len(there)}; nearest: {near}"
        raise ConfigError([line])
    return replace(texts, texts={pair: texts.texts[pair] for pair in wanted.values()})
