"""Readers of parallel text.

Lines end at line feeds only, so that files stay aligned.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, partial
from html import unescape
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
    BadRecord,
    Counts,
    join_words,
    read_each,
)
from magneto.data.sources import (
    VALIDATION_ORDER,
    HubDataset,
    Source,
    check_builtin,
    find_source,
    hash_of,
    held_out_limit,
    hub_files,
    in_split,
    named_splits,
    split_of,
)
from magneto.files import nearest_path, user_path
from magneto.translation.config import (
    DUPLICATE,
    HELD_OUT,
    LENGTH_MISMATCH,
    READ,
    ParallelDataConfig,
    SentencePair,
    required_languages,
    split_direction,
)
from magneto.translation.phrases import PHRASES, import_babel, phrase_languages, phrases

LanguagePair = tuple[str, str]
"""Two language codes, such as ("de", "en")."""
LANGUAGE = re.compile(r"[a-z]{2,3}([-_][A-Za-z0-9]{2,8})*")
# File endings of two or three letters that are not languages (OPUS has a.de, a.en and a.ids).
NO_LANGUAGES = (
    "csv", "htm", "ids", "ini", "js", "log", "md", "out", "pdf", "png", "py", "rst", "sgm", "tgz",
    "tmp", "tmx", "tsv", "xml", "xz", "yml", "zip",
)  # fmt: skip
# Sentences in test sets of IWSLT and WMT, and lines of IWSLT's training files without a sentence.
SEGMENT, TAG = re.compile(r"<seg\b[^>]*>(.*?)</seg>"), re.compile(r"\s*</?[a-z]+\b[^>]*>")
TAGS = "lines of XML tags left out"
MISSING_LANGUAGE = "records without one or both languages"
# Lengths that differ by this many characters or bytes always match.
LENGTH_TOLERANCE = 20
# Splits of a test set, preferred first.
TEST_SPLITS = ("test", "validation", "train")


@dataclass(frozen=True)
class Part:
    """Text of one split in two or more languages."""

    split: str  # "train", "validation" or "test"
    languages: frozenset[str]
    read: Callable[[str, str, Counts], Iterator[SentencePair]]


@dataclass(frozen=True)
class ParallelText:
    """Parallel text of a source, divided into parts.

    `selected` are the languages to use, or None for all.
    """

    parts: list[Part]
    selected: tuple[str, ...] | None = None

    @property
    def languages(self) -> list[str]:
        return sorted({name for part in self.parts for name in part.languages})

    def pairs(self, split: str) -> set[LanguagePair]:
        of_split = [part.languages for part in self.parts if part.split == split]
        used = [names if self.selected is None else names & {*self.selected} for names in of_split]
        return {pair for names in used for pair in combinations(sorted(names), 2)}

    def read(self, first: str, second: str, split: str, counts: Counts) -> Iterator[SentencePair]:
        for part in self.parts:
            if part.split == split and {first, second} <= part.languages:
                yield from part.read(first, second, counts)


def open_parallel(
    source: str, selected: tuple[str, ...] | None, required: frozenset[str] = frozenset()
) -> ParallelText:
    """Open a source of parallel text.

    In a record, a field is a language if its name is like a code (en, pt-BR), or is in `selected`
    or `required`.
    """
    named = required | {*(selected or ())}
    parsed = find_source(source)
    if parsed.kind == "builtin":
        name, _, codes = parsed.name.partition(":")
        check_builtin(replace(parsed, name=name), ("phrases",), "parallel text")
        return builtin_phrases(selected or tuple(codes.split(",") if codes else ()) or None)
    if parsed.kind == "hf":
        return ParallelText(hub_parts(parsed, selected, named), selected)
    lines, records = find_files(source, selected, required)
    parts = [
        Part(path_split(source, Path(stem)), frozenset(files), partial(read_aligned, files))
        for stem, files in lines.items()
    ]
    for path in records:
        parts += record_parts(path, path_split(source, path), named)
    return ParallelText(parts, selected)


def path_split(source: str, path: Path) -> str:
    root = user_path(source)
    name = str(path.relative_to(root)) if root in path.parents else path.name
    return split_of(name) or "train"


def parallel_fingerprint(
    source: str, selected: tuple[str, ...] | None, required: frozenset[str]
) -> str:
    parsed = find_source(source)
    if parsed.kind == "builtin":
        return fingerprint(source, PHRASES, import_babel().__version__)
    if parsed.kind == "hf":
        return fingerprint(source, file_states(hub_files(parsed)))
    lines, records = find_files(source, selected, required)
    files = [path for group in lines.values() for path in group.values()]
    return fingerprint("", file_states(sorted(files + records)))


def builtin_phrases(selected: tuple[str, ...] | None) -> ParallelText:
    known = phrase_languages()
    if unknown := sorted(set(selected or ()) - set(known)):
        hint = nearest(unknown[0], known)
        raise ValueError(
            f"builtin:phrases has no language {unknown[0]!r}{hint} (it has {', '.join(known)})"
        )
    part = Part("train", frozenset(known), lambda first, second, counts: phrases(first, second))
    return ParallelText([part], selected)


def find_files(
    source: str, selected: tuple[str, ...] | None, required: frozenset[str]
) -> tuple[dict[str, dict[str, Path]], list[Path]]:
    path = user_path(source)
    if os.path.isfile(path):
        files = [path]
    elif os.path.isdir(path):
        files = sorted(file for file in walk_files(path) if os.path.isfile(file))
    elif os.path.isdir(path.parent):
        files = sorted(filter(os.path.isfile, path.parent.glob(f"{glob.escape(path.name)}.*")))
    else:
        files = []
    records = [file for file in files if has_ending(file, RECORDS)]
    lines = aligned_files(files, required | {*(selected or ())})
    # Record files are read if no aligned file is in a required language.
    if lines and (
        not (required and records) or any(required & {*group} for group in lines.values())
    ):
        return lines, []
    if records:
        return {}, records
    if os.path.exists(path):
        raise ValueError(f"no parallel text in {source}. Give the folder or the stem of aligned "
                         "files (such as a.en and a.de), or a file that ends in "
                         f"{', '.join(RECORDS)}.")  # fmt: skip
    raise FileNotFoundError(f"no parallel text at {source}{nearest_path(path)}")


def aligned_files(files: Iterable[Path], languages: frozenset[str]) -> dict[str, dict[str, Path]]:
    groups: dict[str, dict[str, list[Path]]] = {}
    for file in files:
        name = re.sub(r"(\.[a-z]{2,3})\.(xml|sgm)$", r"\1", unpacked_name(file))
        name, dot, language = name.removesuffix(".txt").rpartition(".")
        code = LANGUAGE.fullmatch(language) and language not in NO_LANGUAGES
        if dot and (code or language in languages):
            # WMT's test sets are STEM-src.LANGUAGE and STEM-ref.LANGUAGE.
            stem = re.sub(r"(^|[._-])(src|ref)$", "", name)
            groups.setdefault(str(file.parent / stem), {}).setdefault(language, []).append(file)
    groups = {stem: group for stem, group in groups.items() if len(group) > 1}
    for one, other, *_ in (p for group in groups.values() for p in group.values() if len(p) > 1):
        raise ValueError(f"two files for one text: {one} and {other}. Keep one.")
    return {stem: {name: paths[0] for name, paths in group.items()}
            for stem, group in groups.items()}  # fmt: skip


def read_sentences(path: Path, counts: Counts) -> Iterator[str]:
    """Yield the lines of a file without their line ends.

    The lines of XML tags in IWSLT's training files are left out. In the test sets of IWSLT (.xml)
    and WMT (.sgm), the text between <seg> and </seg> counts as a line.
    """
    name = unpacked_name(path)
    segmented, tagged = name.endswith((".xml", ".sgm")), ".tags." in name
    for line in read_lines(path, counts):
        if segmented:
            yield from (unescape(text).strip() for text in SEGMENT.findall(line))
        elif tagged and TAG.match(line):
            counts[TAGS] += 1
        else:
            yield line.removesuffix("\n").removesuffix("\r")


def read_aligned(
    files: dict[str, Path], first: str, second: str, counts: Counts
) -> Iterator[SentencePair]:
    one, other = files[first], files[second]
    pairs = zip_longest(read_sentences(one, counts), read_sentences(other, counts))
    for number, (left, right) in enumerate(pairs):
        if left is None or right is None:
            longer, shorter = (one, other) if right is None else (other, one)
            raise ValueError(f"{longer} has more lines than {shorter} ({number}): the files are "
                             "not aligned")  # fmt: skip
        yield left, right


def record_parts(path: Path, split: str, named: frozenset[str]) -> list[Part]:
    if is_table(path):
        names = set(sentences(next(stream_records(path, Counts()), {}), named))
        if len(names) < 2 and split != "test":  # tests may have no translations
            raise ValueError(f"{path} has no header with two languages. Remove the file, add a "
                             "first line such as en<TAB>de, or give the names of the columns: "
                             "--data.languages english,german --data.pivot_language "
                             "english")  # fmt: skip
    else:
        found = stream_records(path, Counts(), partial(sentences, named=named))
        names = {code for record in found for code in record}

    def read(own: str, first: str, second: str, counts: Counts) -> Iterator[SentencePair]:
        def of_split(record: Any) -> dict[str, str] | None:
            return parallel_sentences(record, named) if in_split(record, own, counts) else None

        return select_languages(stream_records(path, counts, of_split), first, second, counts)

    splits = sorted(named_splits([path])) if split == "train" else []
    parts = [(own, own) for own in splits] or [(split, "")]
    return [Part(name, frozenset(names), partial(read, own)) for name, own in parts]


def hub_parts(
    source: Source, selected: tuple[str, ...] | None, named: frozenset[str]
) -> list[Part]:
    dataset, parts = HubDataset(source), []

    def read(
        config: str, split: str, first: str, second: str, counts: Counts
    ) -> Iterator[SentencePair]:
        rows = dataset.load(config, split)
        own = partial(parallel_sentences, named=named)
        records = read_each(rows, own, counts, f"{source}, row")
        return select_languages(records, first, second, counts)

    for config in dataset.configs():
        # In OPUS-100, the name of a configuration is a language pair, such as af-en.
        names = frozenset(config.split("-"))
        if len(names) != 2 or not all(map(LANGUAGE.fullmatch, names)):
            split = next(iter(dataset.chosen_splits(config).values()))
            names = frozenset(sentences(next(dataset.stream(config, split), {}), named))
        if len(names) < 2:
            continue
        # Finding splits is slow: do it for the selected configurations only.
        used = selected is None or len(names & {*selected}) > 1
        splits = dataset.chosen_splits(config) if used else {"train": "train"}
        parts += [Part(name, names, partial(read, config, own)) for name, own in splits.items()]
    return parts


def select_languages(
    records: Iterable[dict[str, str]], first: str, second: str, counts: Counts
) -> Iterator[SentencePair]:
    for record in records:
        if first in record and second in record:
            yield record[first], record[second]
        else:
            counts[MISSING_LANGUAGE] += 1


def parallel_sentences(record: Any, named: frozenset[str]) -> dict[str, str]:
    found = sentences(record, named)
    if len(found) < 2:
        raise BadRecord("fewer than two languages have a sentence")
    return found


def sentences(record: Any, named: frozenset[str]) -> dict[str, str]:
    inner = record.get("translation", record)
    if not isinstance(inner, dict):
        inner = record
    found = {k: v for k, v in inner.items() if isinstance(v, str)}
    return {k: v for k, v in found.items() if k in named or is_language(k, v)}


def is_language(name: str, text: str) -> bool:
    # Indonesian is also called id.
    return bool(LANGUAGE.fullmatch(name)) and not (name == "id" and text.strip().isdecimal())


class TrainingText:
    """Training and validation text of a recipe, by language pair.

    Raises:
        FileNotFoundError: If there is no such source.
        ValueError: If the source has no text for a direction or a language.
    """

    def __init__(self, config: ParallelDataConfig) -> None:
        self.config = config
        required = required_languages(config)
        self.text = open_parallel(config.source, config.languages, required)
        # For an evaluation on other text both sources are that text.
        self.has_training = config.source != config.validation_source
        available = self.text.pairs("train")
        if not self.has_training:
            available |= {pair for split in VALIDATION_ORDER for pair in self.text.pairs(split)}
        self.directions = training_directions(config, available, self.text.languages)
        self.pairs = sorted({(min(d), max(d)) for d in self.directions})
        self.other: ParallelText | None = None
        if config.validation_source is not None:
            self.other = open_parallel(config.validation_source, config.languages, required)
        self._held = cache(self._held_below)

    def texts(
        self, pair: LanguagePair, split: str, counts: Counts, seen: set[int]
    ) -> Iterator[SentencePair]:
        """Yield the sentence pairs of a split, without empty, mismatched and repeated pairs."""
        earlier = frozenset(seen)
        for texts in self.unfiltered(pair, split, counts):
            counts[READ] += 1
            if not (texts[0].strip() and texts[1].strip()):
                counts[EMPTY] += 1
                continue
            if lengths_mismatch(texts, self.config.max_ratio):
                counts[LENGTH_MISMATCH] += 1
                continue
            key = hash_of("\0".join(texts))
            if key in seen:
                counts[HELD_OUT if key in earlier else DUPLICATE] += 1
                continue
            seen.add(key)
            yield texts

    def unfiltered(self, pair: LanguagePair, split: str, counts: Counts) -> Iterator[SentencePair]:
        if split == "train" and not self.has_training:
            return
        if self.other is not None and split == "validation":
            order = VALIDATION_ORDER if self.has_training else TEST_SPLITS
            own = next((s for s in order if pair in self.other.pairs(s)), None)
            if own is not None:
                yield from self.other.read(*pair, own, counts)
        elif self.other is not None or pair in self.text.pairs("validation"):
            yield from self.text.read(*pair, split, counts)
        else:
            side, limit = self._held(pair)
            for texts in self.text.read(*pair, "train", counts):
                if (hash_of(texts[side]) < limit) == (split == "validation"):
                    yield texts

    def _held_below(self, pair: LanguagePair) -> tuple[int, float]:
        side = int(pair[1] == self.config.pivot_language)
        read = self.text.read(*pair, "train", Counts())
        return side, held_out_limit(
            (texts[side] for texts in read), self.config.validation_fraction
        )


def training_directions(
    config: ParallelDataConfig, available: set[LanguagePair], languages: Sequence[str]
) -> list[LanguagePair]:
    pivot, has = config.pivot_language, f"It has {', '.join(languages)}."
    if config.directions:
        given = list(map(split_direction, config.directions))
        if missing := [f"{a}-{b}" for a, b in given if (min(a, b), max(a, b)) not in available]:
            raise ValueError(f"{config.source} has no text for {', '.join(missing)}. {has}")
        return given
    others = [pair[pair[0] == pivot] for pair in sorted(available) if pivot in pair]
    missing = sorted({*(config.languages or ())} - {pivot, *others})
    if missing and pivot in languages:
        free = sorted({*languages} - {pivot, *others})
        hint = nearest(missing[0], free) or "."
        raise ValueError(f"{config.source} has no training text that pairs {pivot} with "
                         f"{missing[0]} (data.languages){hint} {has}")  # fmt: skip
    if not available:
        raise ValueError(f"{config.source} has no training text in two languages. {has}")
    default = config.languages is None and pivot == ParallelDataConfig.pivot_language
    if not others and len(available) == 1 and default:
        ((one, other),) = available
        return [(one, other), (other, one)]
    if not others:
        one, other = min(available)
        raise ValueError(f"{config.source} has no text that pairs another language with {pivot} "
                         f"(data.pivot_language). {has} Give --data.pivot_language {one}, or "
                         f"--data.directions {one}-{other}.")  # fmt: skip
    return [(pivot, other) for other in others] + [(other, pivot) for other in others]


def lengths_mismatch(texts: SentencePair, ratio: float) -> bool:
    # Both measures count: Chinese text has few characters, and Tamil text has many bytes.
    encoded = [text.encode("utf-8", errors="surrogatepass") for text in texts]
    for one, other in (map(len, texts), map(len, encoded)):
        short, long = sorted((one, other))
        if long <= ratio * short or long - short <= LENGTH_TOLERANCE:
            return False
    return True


@dataclass(frozen=True)
class ReferenceTexts:
    """Sentences with a reference translation, for each direction.

    Languages that the model lacks are left out, and are listed in `unknown`.
    """

    split: str
    texts: dict[LanguagePair, list[SentencePair]]
    unknown: list[str]
    counts: Counts

    def describe(self) -> str:
        total = sum(len(pairs) for pairs in self.texts.values())
        found = self.counts.describe_amounts({"sentences": total})
        unknown = f"; languages left out because the model lacks them: {', '.join(self.unknown)}"
        return found + (unknown if self.unknown else "")


def read_validation_texts(config: ParallelDataConfig, limit: int | None) -> ReferenceTexts:
    """Read at most `limit` validation sentences per direction.

    Sentences that are too long for training are included.
    """
    text, counts = TrainingText(config), Counts()
    if config.validation_limit is not None:
        limit = min(limit or config.validation_limit, config.validation_limit)
    by_pair = {pair: list(islice(text.texts(pair, "validation", counts, set()), limit))
               for pair in text.pairs}  # fmt: skip
    texts = {}
    for one, other in text.directions:
        if found := by_pair[min(one, other), max(one, other)]:
            texts[one, other] = found if one < other else [(b, a) for a, b in found]
    del counts[READ]
    return ReferenceTexts("validation", texts, [], counts)


def select_directions(texts: ReferenceTexts, directions: Sequence[str] | None) -> ReferenceTexts:
    if directions is None:
        return texts
    selected = {name: split_direction(name) for name in directions}
    if missing := [name for name, pair in selected.items() if pair not in texts.texts]:
        available = ["-".join(pair) for pair in texts.texts]
        near = ", ".join(get_close_matches(missing[0], available, n=3, cutoff=0.0))
        raise ConfigError([f"--directions {', '.join(missing)}: not among the {len(available)} "
                           f"directions; the nearest are {near}"])  # fmt: skip
    return replace(texts, texts={pair: texts.texts[pair] for pair in selected.values()})


def read_test_texts(
    source: str,
    config: ParallelDataConfig,
    known: Sequence[str],
    directions: Sequence[str] | None,
    limit: int | None,
) -> ReferenceTexts:
    """Read a test set in its original order, without filters.

    `known` are the languages of the model. `directions`, such as en-de, replace the directions of
    `config`. `limit` is the maximum number of sentences per direction.

    Raises:
        FileNotFoundError: If there is no such source.
        ValueError: If the source has no text for a requested direction, or no text in two languages
            of the model.
    """
    text = open_parallel(source, None, required_languages(config) | {*known})
    split = next((split for split in TEST_SPLITS if text.pairs(split)), TEST_SPLITS[0])
    if split != "test" and any(part.split == "test" for part in text.parts):
        raise ValueError(f"{source} has a test split without translations. Give the file of "
                         "another split.")  # fmt: skip
    available = text.pairs(split)
    both = {d for a, b in available for d in ((a, b), (b, a)) if {*d} <= {*known}}
    has = join_words(sorted("-".join(pair) for pair in available)) or "none"
    has = f"Language pairs of the source: {has}. Languages of the model: {', '.join(known)}."
    if given := directions or config.directions:
        selected = list(map(split_direction, given))
        missing = [f"{a}-{b}" for a, b in selected if (a, b) not in both]
        if missing and directions:
            raise ValueError(f"{source} has no {split} text for {', '.join(missing)}. {has}")
    else:
        pivot = {config.pivot_language} & {*known}  # a model of one pair may lack the pivot
        selected = [d for d in both if pivot <= {*d}]
        selected.sort(key=lambda d: (d[0] != config.pivot_language, d))
    counts, texts = Counts(), {}
    for direction in (d for d in selected if d in both):
        texts[direction] = list(islice(text.read(*direction, split, counts), limit))
    if not texts:
        raise ValueError(f"{source} has no {split} text for this model. {has}")
    unknown = sorted({name for pair in available for name in pair} - {*known})
    return ReferenceTexts(split, texts, unknown, counts)
