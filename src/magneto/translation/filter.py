"""Which directions are trained, and the filters of pairs of sentences: length ratio, duplicates."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from magneto.config import nearest
from magneto.translation.config import ParallelDataConfig, Texts, split_direction

Pair = tuple[str, str]
"""Codes of two languages."""
# Sides that differ by fewer characters or bytes are never of unlike length.
SLACK = 20


def wanted_directions(
    config: ParallelDataConfig, there: set[Pair], languages: Sequence[str]
) -> list[Pair]:
    """Return the directions to train: those given, or all with the pivot language.

    Args:
        config: What is wanted.
        there: Pairs of those languages that the text has, each sorted.
        languages: All that the text has.

    Raises:
        ValueError: If the text has none of them, or nothing for one of the languages.
    """
    with_text = {name for pair in there for name in pair}
    known = with_text if config.pivot_language in languages else set(languages)
    names = ", ".join(sorted(known)) or "no languages to train on"
    if config.directions:
        chosen = [(d[0], d[1]) for d in map(split_direction, config.directions)]
        missing = [f"{a}-{b}" for a, b in chosen if (min(a, b), max(a, b)) not in there]
        if missing:
            raise ValueError(f"{config.source} has no text for {', '.join(missing)}: "
                             f"it has {names}")  # fmt: skip
        return chosen
    usual = config.languages is None and config.pivot_language == ParallelDataConfig.pivot_language
    if len(there) == 1 and usual and config.pivot_language not in languages:
        ((one, other),) = there
        return [(one, other), (other, one)]
    pairs = [pair for pair in sorted(there) if config.pivot_language in pair]
    others = [pair[pair[0] == config.pivot_language] for pair in pairs]
    missing = sorted(set(config.languages or ()) - {config.pivot_language, *others})
    if missing and config.pivot_language in languages:
        pivot = config.pivot_language
        what = f"{config.source} has no text in {missing[0]} (data.languages) with {pivot}"
        if missing[0] in languages:
            raise ValueError(f"{what} to train on")
        hint = nearest(missing[0], sorted({*languages} - {config.pivot_language, *others}))
        raise ValueError(f"{what}{hint} (it has {', '.join(languages)})")
    if not pairs:
        what = f"{config.source} has no text with {config.pivot_language} (data.pivot_language)"
        raise ValueError(f"{what}: it has {names}{_how_to_name(config, sorted(known))}")
    out = [(config.pivot_language, other) for other in others]
    return out + [(other, config.pivot_language) for other in others]


def _how_to_name(config: ParallelDataConfig, languages: Sequence[str]) -> str:
    """Return the options that use what languages there are."""
    if len(languages) < 2:
        return ""
    one, other = languages[:2]
    unnamed = "--data.languages null " if config.languages else ""
    if len(languages) == 2 and unnamed:
        return f"; for both ways between them give {unnamed}".rstrip()
    return f"; give {unnamed}--data.pivot_language {one}, or --data.directions {one}-{other}"


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


def digest(texts: Texts) -> int:
    """Return 64 bits that stand for a pair of sentences."""
    whole = "\0".join(texts).encode("utf-8", errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(whole, digest_size=8).digest(), "big")
