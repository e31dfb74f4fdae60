"""Masked language modelling: it learns, resumes exactly, and asks every run the same questions."""

from pathlib import Path

import numpy as np
import pytest
import torch

from magneto.data.tokenizer import ByteTokenizer, load_tokenizer, train_bpe, train_sentencepiece
from magneto.functional.cross_entropy import IGNORED
from magneto.language.config import MaskedLanguageModelConfig, MaskedTextDataConfig
from magneto.language.masked_lm import MaskedLanguageModeling, Masking
from tests.evaluating import measured, taught
from tests.recorded_progress import RecordedProgress

SIZES = {"width": 32, "layers": 2, "heads": 4, "ffn_width": 64}


def masked_task(counting: Path, seed: int = 1, **data) -> MaskedLanguageModeling:
    values = {"max_length": 48, "tokenizer": "bytes", **data}
    config = MaskedTextDataConfig(source=str(counting), **values)
    model = MaskedLanguageModelConfig(**SIZES, positions="rotary", rotary_base=100.0)
    return MaskedLanguageModeling(model, config, seed)


def test_it_learns(counting: Path) -> None:
    """From a stream, in spans, by BERT's rule; the tiny recipe learns without any of these."""
    data = {"streaming": True, "masking": "span", "corruption": "bert", "mask_documents": True}
    task, progress = masked_task(counting, **data), RecordedProgress()
    task.prepare(progress)
    [line] = progress.lines
    assert line.endswith(f" {len(task.text.validation):,} validation tokens")
    metrics = measured(task, taught(task, 50, rate=1e-2))
    frequencies = masked_task(counting, **{**data, "streaming": False}).baseline()
    assert metrics["loss"] < frequencies["loss"] - 0.3
    assert metrics["perplexity"] == pytest.approx(np.exp(metrics["loss"]))
    assert 0.2 < metrics["masked_accuracy"] <= 1


def test_a_window_is_hidden_otherwise_the_next_time(counting: Path) -> None:
    task = masked_task(counting)
    count = (len(task.text.train) - 1) // 47
    stream = task.train_stream(count, 1).batches()
    first, second = (next(stream)[0] for _ in range(2))

    def windows(batch) -> dict[bytes, bytes]:
        filled = batch["tokens"].clone().scatter_(1, batch["positions"], batch["targets"])
        places = batch["positions"].numpy()
        return {row.numpy().tobytes(): at.tobytes() for row, at in zip(filled, places, strict=True)}

    before, after = windows(first), windows(second)
    assert before.keys() == after.keys() and len(before) > 50
    assert sum(before[row] != after[row] for row in before) > 0.9 * len(before)
    largest = task.dummy_batch(count)
    assert {k: (v.shape, v.dtype) for k, v in largest.items()} == {
        k: (v.shape, v.dtype) for k, v in first.items()
    }
    assert task.loss(task.build_model(), largest).units == count * 48
    assert (first["tokens"][:, 0] == task.text.tokenizer.begin).all()


@pytest.mark.parametrize("streaming", [False, True])
def test_masks_are_drawn_by_seed_epoch_and_window(
    counting: Path, streaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[int, ...]] = []
    task = masked_task(counting, streaming=streaming)
    monkeypatch.setattr(task, "make", lambda windows, seeds: drawn.extend(seeds) or {})
    stream = task.train_stream(20, 7)
    while not drawn or drawn[-1][1] < 2:
        stream.batch(len(drawn) // 20)
    assert len({*drawn}) == len(drawn) and {seed for seed, _, _ in drawn} == {7}
    epochs = [{window for _, epoch, window in drawn if epoch == n} for n in (0, 1)]
    assert epochs[0] == epochs[1] and len(epochs[0]) > 20


def test_every_run_is_asked_the_same(counting: Path) -> None:
    first, second = masked_task(counting, seed=1), masked_task(counting, seed=2)
    for one, other in zip(first.validation_batches(), second.validation_batches(), strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_tokenizer_without_mask_is_refused_before_any_work(
    counting: Path, tmp_path: Path, cache: Path
) -> None:
    train_bpe(["some text of no matter"] * 9, 280, tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match="has no mask token"):
        masked_task(counting, tokenizer=str(tmp_path / "tokenizer.json")).prepare()
    assert not cache.exists()


TEXT = "Whole words are hidden: understanding, naïveté 東京, and re-reading 1234567 things. "
LINES = [f"{TEXT}It is number {i} of many understandings." for i in range(100)]


@pytest.fixture(scope="module", params=["bytes", "bpe", "unigram"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("tokenizer")
    if request.param == "bytes":
        return load_tokenizer("bytes")
    if request.param == "bpe":
        path = folder / "tokenizer.json"
        train_bpe(LINES, 300, path, MaskedTextDataConfig.special)
    else:
        pytest.importorskip("sentencepiece")
        path = folder / "tokenizer.model"
        path.write_bytes(train_sentencepiece(LINES, "unigram", 320, 1000))
    return load_tokenizer(path)


def masking(tokenizer, **changes) -> Masking:
    return Masking(MaskedTextDataConfig(**{"max_length": 80, **changes}), tokenizer)


def rows(tokenizer, count: int = 6, length: int = 80) -> np.ndarray:
    tokens = tokenizer.encode(["".join(LINES)])[0][: count * (length - 2)]
    inner = np.array(tokens).reshape(count, length - 2)
    edge = np.ones((count, 1), np.int64)
    return np.concatenate([edge * tokenizer.begin, inner, edge * tokenizer.end], axis=1)


@pytest.mark.parametrize("kind", ["token", "word", "span"])
def test_the_share_is_hidden_and_never_a_special_token(tokenizer, kind: str) -> None:
    whole = rows(tokenizer)
    hides = masking(tokenizer, masking=kind)
    batch = {k: v.numpy() for k, v in hides.batch(whole, [(1, i) for i in range(6)]).items()}
    assert batch["positions"].shape == batch["targets"].shape == (6, int(0.15 * 80))
    for row, targets in enumerate(batch["targets"]):
        real = targets != IGNORED
        places = batch["positions"][row][real]
        assert len(set(places)) == len(places) >= (12 if kind != "word" else 6)
        assert (whole[row, places] == targets[real]).all()
        assert (batch["tokens"][row, places] == tokenizer.mask).all()
        assert not {0, 79} & set(places)  # the first begins, the last ends
        assert places.min() < 40 <= places.max()
        rest = np.setdiff1d(np.arange(80), places)
        assert (batch["tokens"][row, rest] == whole[row, rest]).all()


def test_whole_words_are_hidden_whole(tokenizer) -> None:
    whole = rows(tokenizer)
    hides = masking(tokenizer, masking="word", mask_ratio=0.3)
    batch = hides.batch(whole, [(5, i) for i in range(6)])
    pieces = tokenizer.pieces()
    for row, seen in zip(whole, batch["tokens"].numpy(), strict=True):
        hidden = seen == tokenizer.mask
        for place in range(2, 79):
            before, here = pieces[row[place - 1]][-1], pieces[row[place]][0]
            if all(c.isalnum() or c == "\ufffd" for c in (before, here)):
                assert hidden[place - 1] == hidden[place], (before, here)
    row = np.array(tokenizer.encode(["one-two"])[0])
    words = hides._words(row, np.ones(len(row), bool))
    parts = ["".join(pieces[n] for n in row[word]) for word in words]
    assert parts[-3:] == ["one", "-", "two"]


def test_spans_are_longer_than_single_tokens(tokenizer) -> None:
    whole = np.repeat(rows(tokenizer), 20, axis=0)

    def runs(kind: str) -> float:
        hidden = masking(tokenizer, masking=kind).batch(whole, [(i,) for i in range(120)])
        seen = hidden["tokens"].numpy() == tokenizer.mask
        return seen.sum() / (seen[:, 1:] & ~seen[:, :-1]).sum()

    assert runs("token") < 1.4 and 2.5 < runs("span") < 6


def test_berts_rule_hides_replaces_and_keeps() -> None:
    tokenizer = ByteTokenizer()
    hides = masking(tokenizer, corruption="bert")
    tokens = np.full(100_000, 65)
    seen = hides.corrupt(tokens, np.random.default_rng(0))
    shares = [(seen == tokenizer.mask).mean(), (seen == 65).mean()]
    assert shares == pytest.approx([0.8, 0.1 + 0.1 / 256], abs=0.005)
    assert set(np.unique(seen)) == {*range(256), tokenizer.mask}  # no other special token


def test_a_word_longer_than_all_that_may_be_hidden() -> None:
    tokenizer = ByteTokenizer()
    row = np.array([[tokenizer.begin, *b"x" * 79]])
    batch = masking(tokenizer, masking="word").batch(row, [(1,)])
    assert (batch["targets"] != IGNORED).sum() == 12
    empty = np.full((1, 80), tokenizer.end)
    for kind in ("token", "word", "span"):
        batch = masking(tokenizer, masking=kind).batch(empty, [(1,)])
        assert (batch["targets"] == IGNORED).all() and (batch["tokens"].numpy() == empty).all()
