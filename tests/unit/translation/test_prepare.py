"""Text is prepared once and counted; groups hold what they may, waste little and miss nothing."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from magneto.data.stream import BatchStream
from magneto.data.tokenizer import ByteTokenizer
from magneto.functional.cross_entropy import IGNORED
from magneto.progress import SILENT
from magneto.translation import prepare as prepare_module
from magneto.translation.config import ParallelDataConfig
from magneto.translation.prepare import (
    CacheWriter,
    GroupMaker,
    ParallelSplit,
    PreparedParallel,
    TranslationVocabulary,
    prepare_parallel,
    temperature_shares,
    training_stream,
)

PAIRS = [("de", "en"), ("en", "fr")]
LINES = 2100  # more than two batches


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name in ("en", "de", "fr"):
        lines = [f"{name} number {i}" for i in range(LINES)]
        (tmp_path / f"a.train.{name}").write_text("\n".join([*lines, name * 98]) + "\n")
        valid = [f"{name} {i}" for i in range(20)]
        (tmp_path / f"a.valid.{name}").write_text("\n".join([*valid, "", name * 99, *valid]) + "\n")
    return tmp_path


def prepare(source: Path, **changes) -> PreparedParallel:
    values = {"tokenizer": "bytes", "max_length": 50, **changes}
    return prepare_parallel(ParallelDataConfig(source=str(source), **values), SILENT)


def test_every_batch_is_written_in_order(source: Path) -> None:
    prepared = prepare(source)
    decode = prepared.vocabulary.tokenizer.decode
    assert prepared.train.ranges == {PAIRS[0]: (0, LINES), PAIRS[1]: (LINES, 2 * LINES)}
    assert prepared.train.offsets[-1] == len(prepared.train.tokens)
    assert list(prepared.describe("text")) == [
        "de-en: 2,100 kept, 2,101 read (1 too long)",
        "en-fr: 2,100 kept, 2,101 read (1 too long)",
        f"text: 4 directions, 4,200 pairs, {len(prepared.train.tokens):,} tokens",
        "validation: de-en: 20 kept, 42 read (20 duplicates, 1 empty text left out, 1 too long)",
        "validation: en-fr: 20 kept, 42 read (20 duplicates, 1 empty text left out, 1 too long)",
        f"validation: 4 directions, 40 pairs, {len(prepared.validation.tokens)} tokens",
    ]
    limited = prepare(source, validation_limit=7)
    assert limited.validation.ranges == {PAIRS[0]: (0, 7), PAIRS[1]: (7, 14)}
    assert limited.train.ranges == prepared.train.ranges
    for i in (0, 1, 1023, 1024, 2048, LINES - 1):
        sides = [decode(prepared.train.side(LINES + i, side).tolist()) for side in (0, 1)]
        assert sides == [f"en number {i}", f"fr number {i}"]


def test_sentencepiece_learns_from_as_many_lines_as_it_is_told(source, monkeypatch) -> None:
    """Another number is another vocabulary; the same is found."""
    pytest.importorskip("sentencepiece")
    train, asked = prepare_module.train_sentencepiece, []
    monkeypatch.setattr(prepare_module, "train_sentencepiece",
                        lambda *given: asked.append(given[1:4]) or train(*given))  # fmt: skip
    for lines in (700, 900, 900):
        prepare(source, tokenizer="sentencepiece", vocab_size=290, tokenizer_lines=lines)
    assert asked == [("unigram", 290, 700), ("unigram", 290, 900)]


def test_a_tokenizer_is_trained_on_as_much_of_each_pair(source: Path, monkeypatch) -> None:
    monkeypatch.setattr(prepare_module, "TOKENIZER_CHARACTERS", 4000)
    writer = CacheWriter(ParallelDataConfig(source=str(source), max_length=50), SILENT)
    texts = list(writer._tokenizer_texts())
    german, french = (sum(text.startswith(name) for text in texts) for name in ("de", "fr"))
    assert german == french == len(texts) / 4 > 50 and sum(map(len, texts)) < 4000


def test_prepared_once_and_anew_when_anything_changes(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run keeps its vocabulary; to open it must not tokenise the text again."""
    first, of_bytes = prepare(source, tokenizer="bpe", vocab_size=300), prepare(source)
    for name, prepared in (("run", first), ("bytes", of_bytes)):
        (source / name).mkdir()
        prepared.vocabulary.save(source / name)
    prepare(source, tokenizer="bpe", vocab_size=300, max_ratio=2)
    file = ParallelDataConfig(tokenizer=str(source / "run" / "tokenizer.json"))
    assert prepare_module.stored_languages(file) == ["de", "en", "fr"]  # the tags are beside it
    with monkeypatch.context() as patch:
        patch.setattr(CacheWriter, "write", lambda *_: pytest.fail("tokenised again"))
        for tokenizer in ("bpe", str(source / "run")):
            again = prepare(source, tokenizer=tokenizer, vocab_size=300)
            assert np.array_equal(again.train.tokens, first.train.tokens)
        assert prepare(source, tokenizer=str(source / "bytes")).digest == of_bytes.digest
    assert len([path for path in cache.glob("parallel-*") if not path.is_symlink()]) == 3


def test_every_change_has_a_cache_of_its_own(source: Path) -> None:
    config = ParallelDataConfig(source=str(source), tokenizer="bpe", vocab_size=300)
    changes = {"vocab_size": 310, "max_ratio": 2.0, "max_length": 40, "validation_fraction": 0.1,
               "validation_limit": 5, "pivot_language": "de", "tokenizer": "bytes",
               "languages": ("de", "en"), "directions": ("en-de",)}  # fmt: skip
    path = prepare_module._cache_path
    known = {path(replace(config, **{name: value})) for name, value in changes.items()}
    assert len(known) == len(changes) and path(config) not in known
    assert path(replace(config, tokenizer_lines=7)) == path(config)  # of SentencePiece alone
    known.add(path(config))
    held = {path(replace(config, validation_source=f"{source}/a.{split}"))
            for split in ("train", "valid")}  # fmt: skip
    assert len(held) == 2 and held.isdisjoint(known)
    (source / "a.valid.fr").write_text("fr\n")
    assert path(config) not in known


def test_a_joint_tokenizer_and_an_older_vocabulary(source: Path, tmp_path: Path) -> None:
    first = prepare(source, tokenizer="bpe", vocab_size=300, directions=("en-de", "de-en"))
    made = first.vocabulary
    assert (made.size, made.languages, made.tag("en")) == (302, ("de", "en"), 301)
    words = made.tokenizer.encode(["Hé"])[0]
    assert made.encode_source(["Hé"], "de") == [[made.tag("de"), *words, made.end]]
    assert made.decode([*words, made.tag("de"), made.end, 65]) == "Hé"
    plain: Any = SimpleNamespace(vocab_size=4, end=2, decode=list)
    assert TranslationVocabulary(plain, ["de"]).decode([0, 3, 4, 1, 2, 3]) == [0, 3, 1]
    saved = tmp_path / "saved"
    saved.mkdir()
    TranslationVocabulary(made.tokenizer, ["xx", *made.languages]).save(saved)
    again = prepare(source, tokenizer=str(saved), directions=("de-en",))
    assert again.vocabulary.languages == ("xx", "de", "en") and again.directions == [("de", "en")]
    with pytest.raises(ValueError, match=r"no language 'fr' \(the model has xx, de, en\)"):
        prepare(source, tokenizer=str(saved))


DE, FR = PAIRS
DIRECTIONS = [("en", "de"), ("en", "fr"), ("de", "en"), ("fr", "en")]


def vocabulary() -> TranslationVocabulary:
    return TranslationVocabulary(ByteTokenizer(), ["de", "en", "fr"])


def maker() -> GroupMaker:
    """Sides of lengths like those of captions; the first tokens of a side tell the example."""
    random = np.random.default_rng(0)
    ranges, lengths, stop = {}, [], 0
    for pair, size in {DE: 3000, FR: 300}.items():
        ranges[pair] = (stop, stop + size)
        stop += size
        one = random.gamma(8, 2, size).astype(int) + 2
        lengths.append(np.stack([one, (one * random.normal(1.1, 0.2, size)).clip(2)], 1))
    lengths = np.concatenate(lengths).astype(int)
    offsets = np.concatenate([[0], lengths.ravel().cumsum()])
    tokens = np.arange(offsets[-1]) % 256
    numbers = np.arange(stop)
    for side in (0, 1):
        tokens[offsets[2 * numbers + side]] = numbers % 256
        tokens[offsets[2 * numbers + side] + 1] = numbers // 256
    split = ParallelSplit(tokens.astype(np.uint16), offsets, ranges)
    return GroupMaker(split, vocabulary(), DIRECTIONS)


def stream(
    batch_size: int = 4, temperature: float = 1.0, block: int = 100_000, seed: int = 3
) -> BatchStream:
    config = ParallelDataConfig(max_tokens=512, temperature=temperature, block=block)
    return training_stream(maker(), batch_size, config, seed)


def examples(group: dict) -> list[tuple[int, int]]:
    """Tag and example of each row of a group."""
    return [(row[0].item(), row[1].item() + 256 * row[2].item()) for row in group["source"]]


def test_an_epoch_has_every_example_once_in_groups_that_waste_little() -> None:
    groups, seen, count, cells, real = stream(batch_size=1).batches(), Counter(), 0, 0, 0
    while seen.total() < 6600:
        for group in next(groups)[0]:
            seen.update(examples(group))
            rows, width = group["target"].shape
            assert rows * max(width, group["source"].shape[1]) <= 512
            count, cells, real = count + 1, cells + group["cells"], real + group["real"]
    assert max(seen.values()) == 1 and len(seen) == 6600
    assert {tag for tag, _ in seen} == {260, 261, 262}
    assert 1 - real / cells < 0.1
    made = maker()
    longest = [made.lengths(i, np.arange(n)).max(1).sum() for i, n in enumerate(made.sizes)]
    assert count < 1.15 * sum(longest) / 512


def test_another_seed_is_of_other_examples_in_another_order() -> None:
    """Of examples in a small block, and of the groups of a large one; these are not sorted."""
    chosen, widths = [], []
    for seed in (3, 4):
        groups, seen = stream(1, block=100, seed=seed).batches(), list[tuple[int, int]]()
        while len(seen) < 45 + 4 + 45 + 4:  # of the four directions
            seen += examples(next(groups)[0][0])
        chosen.append({*seen})
        groups = stream(1, seed=seed).batches()
        widths.append([next(groups)[0][0]["target"].shape[1] for _ in range(20)])
    assert chosen[0] != chosen[1] and widths[0] != widths[1] and widths[0] != sorted(widths[0])


def test_a_group_is_what_the_model_reads() -> None:
    made = maker()
    group = made.make(np.array([0, 2]), np.array([5, 9]))
    tag, end = vocabulary().tag, vocabulary().end
    for row, (example, to, side) in enumerate(((5, "de", 1), (9, "en", 0))):
        source = made.split.side(example, side).tolist()
        target = made.split.side(example, 1 - side).tolist()
        assert group["source"][row][group["source_mask"][row]].tolist() == [tag(to), *source, end]
        assert group["target"][row][: len(target) + 1].tolist() == [end, *target]
        answers = group["targets"][row]
        assert answers[answers != IGNORED].tolist() == [*target, end]
    assert group["predicted"] == (group["targets"] != IGNORED).sum()
    assert group["real"] == group["predicted"] + group["source_mask"].sum()
    assert group["cells"] == group["source"].numel() + group["target"].numel()


def test_temperature() -> None:
    assert temperature_shares([900, 100], 1).tolist() == [0.9, 0.1]
    assert temperature_shares([900, 100], 2) == pytest.approx([0.75, 0.25])
    rows: Counter = Counter()
    groups = stream(temperature=2.0, block=1000).batches()
    for _ in range(300):
        rows.update(example < 3000 for group in next(groups)[0] for _, example in examples(group))
    share = np.sqrt(3000) / (np.sqrt(3000) + np.sqrt(300))
    assert rows[True] / rows.total() == pytest.approx(share, abs=0.02)
