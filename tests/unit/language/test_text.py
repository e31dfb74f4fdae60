"""From files to packed windows: what is odd is counted, work is done once, order resumes."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from magneto.data.documents import DOCUMENTS, read_documents
from magneto.data.problems import Counts
from magneto.data.sources import held_out
from magneto.data.stream import in_blocks
from magneto.data.tokenizer import ByteTokenizer
from magneto.language import text
from magneto.language.config import MaskedTextDataConfig, TextDataConfig
from magneto.language.text import (
    StreamedBlocks,
    build_tokenizer,
    count_windows,
    derive_length,
    next_token_batch,
    prepare_text,
    read_windows,
    tokenize_documents,
)
from magneto.progress import SILENT


def read(path: Path) -> tuple[list[str], Counts]:
    counts = Counts()
    return list(read_documents(str(path), "text", counts)), counts


def corpus(folder: Path, documents: int = 60) -> Path:
    lines = [json.dumps({"text": f"Document {i} says: " + f"{i} " * 30}) for i in range(documents)]
    path = folder / "corpus.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_tokenised_once_and_exactly(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run keeps its tokenizer; to open it must not tokenise the text again."""
    monkeypatch.setattr(text, "BATCH", 2)
    config = TextDataConfig(source=str(corpus(tmp_path)), vocab_size=300, max_length=32)
    tokenizer = prepare_text(config, SILENT).tokenizer
    made = {path: path.stat().st_mtime_ns for path in cache.rglob("*.bin")}
    assert len(made) == 2
    tokenizer.save(tmp_path)
    documents = read(Path(config.source))[0]
    for again in (config, replace(config, tokenizer=str(tmp_path))):
        prepared = prepare_text(again, SILENT)
        for split, held in (("train", False), ("validation", True)):
            texts = [t for t in documents if held_out(t, config.validation_fraction) == held]
            expected = [token for t in tokenizer.encode(texts) for token in (*t, tokenizer.end)]
            found = getattr(prepared, split)
            assert found.tolist() == expected and found.dtype == np.uint16
        assert prepared.text_bytes == sum(len(t.encode()) for t in texts) and len(texts) > 2
    assert made == {path: path.stat().st_mtime_ns for path in cache.rglob("*.bin")}


def test_the_cache_knows_what_changed(tmp_path: Path) -> None:
    path = corpus(tmp_path)
    config = TextDataConfig(source=str(path), tokenizer="bytes", max_length=8)
    before = len(prepare_text(config, SILENT).train)
    path.write_text(path.read_text() + "\n" + json.dumps({"text": "more " * 50}))
    assert len(prepare_text(config, SILENT).train) > before
    other = TextDataConfig(source=str(path), tokenizer="bpe", vocab_size=300, max_length=8)
    assert prepare_text(other, SILENT).tokenizer.vocab_size == 300
    assert prepare_text(replace(other, vocab_size=310), SILENT).tokenizer.vocab_size == 310
    held = [prepare_text(replace(config, validation_fraction=share), SILENT).validation
            for share in (0.05, 0.5)]  # fmt: skip
    assert len(held[0]) < len(held[1]) / 4
    files = [text.window_count_file(*its) for its in (
        (config, 8), (config, 9), (other, 8), (replace(config, validation_fraction=0.5), 8),
    )]  # fmt: skip
    assert len({*files}) == 4
    for streaming in (False, True):  # a tokenizer without a mask is in the cache
        shown = {"vocab_size": 300, "max_length": 8, "streaming": streaming}
        for kind, masks in ((TextDataConfig, False), (MaskedTextDataConfig, True)):
            tokenizer = prepare_text(kind(source=str(path), **shown), SILENT).tokenizer
            assert (tokenizer.mask is not None) == masks
    for size in (280, 290):
        assert build_tokenizer("bpe", size, read(path)[0]).vocab_size == size


def test_a_streams_tokenizer_is_learnt_again_from_changed_text(tmp_path: Path) -> None:
    path = corpus(tmp_path)
    config = TextDataConfig(source=str(path), vocab_size=300, max_length=8, streaming=True)
    before = prepare_text(config, SILENT).tokenizer.encode(["zyzzyva"])[0]
    assert prepare_text(config, SILENT).tokenizer.encode(["zyzzyva"])[0] == before
    path.write_text("\n".join(json.dumps({"text": "zyzzyva " * 50 + str(i)}) for i in range(60)))
    assert len(prepare_text(config, SILENT).tokenizer.encode(["zyzzyva"])[0]) < len(before)
    # What is held out is the same as without streaming.
    stream, whole = (
        prepare_text(replace(config, tokenizer="bytes", streaming=how), SILENT)
        for how in (True, False)
    )
    assert stream.validation.tolist() == whole.validation.tolist()
    assert stream.text_bytes == whole.text_bytes


def test_of_a_stream_only_the_head_is_read_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer and the validation set are of it; all of the text need not fit on a disk."""
    monkeypatch.setattr(text, "STREAM_HEAD", 20)
    path = corpus(tmp_path)
    lines = [json.dumps({"text": f"{i} zyzzyva zyzzyva"}) for i in range(60)]
    path.write_text("\n".join([path.read_text(), *lines]))
    values = {"vocab_size": 300, "max_length": 8, "streaming": True, "validation_fraction": 0.25}
    found = prepare_text(TextDataConfig(source=str(path), **values), SILENT)
    assert (found.validation == found.tokenizer.end).sum() == 5
    assert not any("zy" in piece for piece in found.tokenizer.pieces())


def test_validation_from_another_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, held = corpus(tmp_path), tmp_path / "other.txt"
    held.write_text("held out – " * 20, encoding="utf-8")
    config = TextDataConfig(
        source=str(path), validation_source=str(held), tokenizer="bytes", max_length=8
    )
    prepared = prepare_text(config, SILENT)
    assert bytes(prepared.validation[:8].astype(np.uint8)) == b"held out"
    assert prepared.text_bytes == len(held.read_bytes())
    assert len(prepared.train) == sum(len(t.encode()) + 1 for t in read(path)[0])
    held.write_text("changed text")
    assert bytes(prepare_text(config, SILENT).validation[:-1].astype(np.uint8)) == b"changed text"
    monkeypatch.setattr(ByteTokenizer, "vocab_size", 2**16 + 1)
    large = prepare_text(replace(config, max_length=9, validation_source=str(path)), SILENT)
    assert large.train.dtype == np.uint32


def test_a_source_that_is_also_the_validation_source_is_tokenised_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, encode, seen = str(corpus(tmp_path)), ByteTokenizer.encode, list[str]()
    monkeypatch.setattr(
        ByteTokenizer, "encode", lambda self, texts: encode(self, seen.extend(texts) or texts)
    )
    config = TextDataConfig(source=source, tokenizer="bytes", max_length=8)
    found = prepare_text(replace(config, validation_source=source), SILENT)
    assert seen == read(Path(source))[0] and found.counts[DOCUMENTS] == len(seen) == 60
    assert found.train.tolist() == found.validation.tolist()
    for split in ("train", "dev"):  # an evaluation does not need the training split
        (tmp_path / "both" / f"{split}.txt").parent.mkdir(exist_ok=True)
        (tmp_path / "both" / f"{split}.txt").write_text(f"text of {split}")
    both = str(tmp_path / "both")
    prepare_text(replace(config, source=both, validation_source=both), SILENT)
    assert seen[60:] == ["text of dev"]


@pytest.mark.parametrize("fraction", [1e-9, 1 - 1e-9])
def test_no_side_is_left_empty(tmp_path: Path, fraction: float) -> None:
    """Unless there is but one document, which says how to cut it."""
    values = {"tokenizer": "bytes", "max_length": 8, "validation_fraction": fraction}
    found = prepare_text(TextDataConfig(source=str(corpus(tmp_path, 9)), **values), SILENT)
    counts = [int((part == 256).sum()) for part in (found.train, found.validation)]
    assert sorted(counts) == [1, 8]
    (tmp_path / "a.txt").write_text("".join(f"Sentence {i} of a text.\n" for i in range(400)))
    config = TextDataConfig(source=str(tmp_path / "a.txt"), **values)
    with pytest.raises(ValueError, match=r"0 validation tokens.*--data\.document line if"):
        prepare_text(config, SILENT)
    cut = prepare_text(replace(config, document="line", validation_fraction=0.1), SILENT)
    assert cut.counts[DOCUMENTS] == 400 and len(cut.validation) > 8


def test_too_little_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("short")
    config = TextDataConfig(source=str(tmp_path / "a.txt"), tokenizer="bytes")
    with pytest.raises(ValueError, match=r"too few for one sequence of 512.* data\.max_length"):
        prepare_text(config, SILENT)
    (tmp_path / "whole").mkdir()
    for name, count in (("train", 300), ("valid", 1)):
        (tmp_path / "whole" / f"{name}.txt").write_text("Some words. " * count)
    config = TextDataConfig(source=str(tmp_path / "whole"), tokenizer="bytes", max_length=13)
    with pytest.raises(ValueError, match=r"13 validation tokens.* of 13. Give more text"):
        prepare_text(config, SILENT)
    (tmp_path / "b.jsonl").write_text('{"words": "a b"}\n' * 9)
    config = TextDataConfig(source=str(tmp_path / "b.jsonl"), tokenizer="bytes")
    with pytest.raises(ValueError, match=r"has 0 documents \(9 malformed .* in field 'text'"):
        prepare_text(config, SILENT)
    for _ in range(2):  # the second run knows the counts of the first
        with pytest.raises(ValueError, match="too little text"):
            streamed(tmp_path / "counts", Encoder(), ["short"])(0)


TEXTS = [f"document {i} " + "abc" * i for i in range(11)]


class Encoder:
    """Bytes for tokens; notes how many documents it was given."""

    def __init__(self) -> None:
        self.documents = 0

    def __call__(self, texts: list[str]) -> np.ndarray:
        self.documents += len(texts)
        return np.concatenate([part for part, _ in tokenize_documents(texts, ByteTokenizer())])


def streamed(counts: Path, encode: Encoder, documents: list[str] = TEXTS):
    blocks = StreamedBlocks(lambda: iter(documents), encode, 16, 4, 5, counts)
    return in_blocks(blocks.windows, 3, blocks.count)


def rows(batch: list) -> list[list[int]]:
    return [window.tolist() for _, _, window in batch]


@pytest.mark.parametrize("count", [11, 12])
def test_streaming_gives_every_window_once_an_epoch(tmp_path: Path, count: int) -> None:
    documents = [" ".join(str(1000 * i + j) for j in range(3 * i + 1)) for i in range(count)]
    blocks = StreamedBlocks(lambda: iter(documents), Encoder(), 16, 4, 5, tmp_path / "counts")
    found = [example for number in range(4) for example in blocks.windows(number)]
    assert found[-1][0] <= 1
    assert len({(epoch, number) for epoch, number, _ in found}) == len(found)
    first = [row.tobytes() for epoch, _, row in found if epoch == 0]
    tokens = sum(len(text) + 1 for text in documents)
    assert tokens // 16 - 4 <= len(first) <= tokens // 16 and len(set(first)) == len(first)
    other = StreamedBlocks(lambda: iter(documents), Encoder(), 16, 4, 6, tmp_path / "other")
    again = blocks.windows(0), blocks.windows(blocks.blocks or 0), other.windows(0)
    assert len({b"".join(row.tobytes() for _, _, row in block) for block in again}) == 3


def test_streamed_batches_are_a_function_of_the_step(tmp_path: Path) -> None:
    """Whoever goes on tokenises little of what was passed, also in a later epoch."""
    plan = streamed(tmp_path / "counts", Encoder())
    whole = [rows(plan(step)) for step in range(40)]
    assert whole[0] not in whole[1:]
    for step in (0, 5, 39):
        late, fresh = Encoder(), Encoder()
        assert rows(streamed(tmp_path / "counts", late)(step)) == whole[step]
        assert rows(streamed(tmp_path / f"none-{step}", fresh)(step)) == whole[step]
        assert late.documents <= 8 and (step == 0 or fresh.documents >= late.documents)


def test_counts_of_a_stream_that_were_cut_short_are_counted_again(tmp_path: Path) -> None:
    """A full disk cuts a line, and the next process goes on behind it."""
    whole = rows(streamed(tmp_path / "none", Encoder())(7))
    (tmp_path / "counts").write_bytes(b'[0, 1[1, 5]\n\xff\n["1", 2]\n7\n')
    assert rows(streamed(tmp_path / "counts", Encoder())(7)) == whole


def test_a_derived_length_is_that_of_99_percent() -> None:
    lengths = np.random.default_rng(0).permutation([*range(1, 991), *[5000] * 10])
    assert derive_length(lengths, 10_000) == 992 and derive_length(lengths, 500) == 500
    assert derive_length([*lengths, 5000], 10_000) == 5000, "11 of 1001 texts are more than 1 %"
    assert derive_length([2, 3], 100) == 16 and derive_length([2, 40], 100) == 40


def test_windows_follow_one_another() -> None:
    tokens = np.arange(100, dtype=np.uint16)
    assert [count_windows(tokens[:count], 8) for count in (96, 97, 100)] == [11, 12, 12]
    batch = next_token_batch(read_windows(tokens, 8, np.array([0, 11])))
    assert batch["tokens"].tolist() == [list(range(8)), list(range(88, 96))]
    assert batch["targets"].tolist() == [list(range(1, 9)), list(range(89, 97))]
