"""The tokenizer of a task's texts: one that is given, or one that is learnt from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from magneto.data.cache import cache_directory, content_digest, fingerprint, is_kept, made_whole
from magneto.data.tokenizer import BPE_CHARACTERS, SPECIAL, Tokenizer, load_tokenizer, train_bpe
from magneto.progress import SILENT, Progress


def text_tokenizer(
    name: str, vocab_size: int, texts: Iterable[str], progress: Progress = SILENT
) -> Tokenizer:
    """Return a tokenizer with `</s>`, `<s>`, `<pad>` and `<mask>`.

    Args:
        name: "bpe", which is learnt from the texts and kept in the cache, or what
            `magneto.data.tokenizer.load_tokenizer` takes.
        vocab_size: Of "bpe", at most.
        texts: That "bpe" is learnt from, of which it takes 100 million characters; not read for
            another name.
        progress: Told that it is learnt.
    """
    if name != "bpe":
        return load_tokenizer(name)
    some = list(limited(texts))
    digest = content_digest(*(text.encode("utf-8", errors="surrogatepass") for text in some))
    held = cache_directory() / f"tokenizer-{fingerprint(digest, vocab_size, SPECIAL)}"
    if not is_kept(held, progress):
        progress.say(f"learning a tokenizer from {len(some):,} texts")
        with made_whole(held) as aside:
            train_bpe(some, vocab_size, aside / "tokenizer.json", SPECIAL)
    return load_tokenizer(held)


def limited(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts up to `BPE_CHARACTERS` characters."""
    size = 0
    for text in texts:
        size += len(text)
        yield text
        if size > BPE_CHARACTERS:
            return
