"""Open parallel text wherever it lies: PATH, hf:NAME or builtin:phrases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from magneto.config import nearest
from magneto.data.cache import file_states, fingerprint
from magneto.data.counts import Counts
from magneto.data.problems import read_each
from magneto.data.sources import HubDataset, Source, check_builtin, hub_files, parse_source
from magneto.data.splits import SPLIT_NAMES
from magneto.translation.config import LACKING, ParallelText, Texts
from magneto.translation.files import open_files
from magneto.translation.phrases import PHRASES, import_babel, phrase_languages, phrases
from magneto.translation.records import LANGUAGE, sentences, several

NAMES = ("phrases",)


class Phrases:
    """Babel's phrases; nothing is held out beforehand."""

    def __init__(self, wanted: tuple[str, ...] | None) -> None:
        self.languages = phrase_languages()
        if unknown := sorted(set(wanted or ()) - set(self.languages)):
            hint = nearest(unknown[0], self.languages)
            known = ", ".join(self.languages)
            raise ValueError(f"builtin:phrases has no {unknown[0]!r}{hint} (it has {known})")
        self.wanted = [n for n in self.languages if wanted is None or n in wanted]

    def pairs(self, split: str) -> set[tuple[str, str]]:
        """Return all pairs, for training."""
        return set(combinations(self.wanted, 2)) if split == "train" else set()

    def read(self, first: str, second: str, split: str, counts: Counts) -> Iterator[Texts]:
        """Yield phrases in two languages."""
        return phrases(first, second)


class HubPairs:
    """A data set of the Hugging Face hub, or a folder like one.

    Its configurations are pairs of languages (as of OPUS-100: af-en, am-en, ...), or it has one
    whose records hold several languages.
    """

    def __init__(self, source: Source, wanted: tuple[str, ...] | None) -> None:
        self.dataset = HubDataset(source)
        self.wanted = wanted
        self.configs: dict[tuple[str, str], str] = {}
        self.languages = self._find()
        self._splits: dict[str, list[str]] = {}

    def _find(self) -> list[str]:
        """Find the pairs of languages; return all languages there are."""
        names: set[str] = set()
        for config in self.dataset.configs():
            codes = config.split("-")
            if len(codes) == 2 and all(LANGUAGE.fullmatch(code) for code in codes):
                names |= set(codes)
                self._add(codes[0], codes[1], config)
            elif len(found := self._columns(config)) > 1:
                names |= set(found)
                for one, other in combinations(found, 2):
                    self._add(one, other, config)
        return sorted(names)

    def _add(self, one: str, other: str, config: str) -> None:
        if self.wanted is None or (one in self.wanted and other in self.wanted):
            self.configs.setdefault((min(one, other), max(one, other)), config)

    def _columns(self, config: str) -> list[str]:
        rows = self.dataset.load(config, "train", streaming=True)
        return sorted(sentences(next(iter(rows), {})))

    def _split(self, config: str, split: str) -> str | None:
        if config not in self._splits:
            self._splits[config] = self.dataset.splits(config)
        return next((name for name in SPLIT_NAMES[split] if name in self._splits[config]), None)

    def pairs(self, split: str) -> set[tuple[str, str]]:
        """Return the pairs of languages that a split has."""
        return {pair for pair, config in self.configs.items() if self._split(config, split)}

    def read(self, first: str, second: str, split: str, counts: Counts) -> Iterator[Texts]:
        """Yield the sentences of a pair."""
        config = self.configs[min(first, second), max(first, second)]
        rows = self.dataset.load(config, self._split(config, split))
        for found in read_each(rows, several, counts, f"{self.dataset.source}, row"):
            if first in found and second in found:
                yield found[first], found[second]
            else:
                counts[LACKING] += 1


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
    found = parse_source(source)
    if found.kind == "builtin":
        name, _, codes = found.name.partition(":")
        check_builtin(replace(found, name=name), NAMES, "parallel text")
        return Phrases(wanted or tuple(codes.split(",") if codes else ()) or None)
    if found.kind == "hf":
        return HubPairs(found, wanted)
    return open_files(source, wanted, sought)


def parallel_fingerprint(
    source: str, wanted: tuple[str, ...] | None, sought: frozenset[str]
) -> str:
    """Name the content of a source: files by their states, others by name."""
    found = parse_source(source)
    if found.kind == "builtin":
        return fingerprint(source, PHRASES, import_babel().__version__)
    if found.kind == "hf":
        return fingerprint(source, file_states(hub_files(found)))
    files = sorted(open_files(source, wanted, sought).files)
    return fingerprint("", file_states(files))
