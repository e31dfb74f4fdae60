"""BEiT-3's SentencePiece model in fairseq's order, against XLM-RoBERTa's numbers."""

from pathlib import Path
from typing import Any

import pytest

spm = pytest.importorskip("sentencepiece")

from magneto.data.tokenizer import load_tokenizer  # noqa: E402
from magneto.hf.torchscale import write_fairseq_order  # noqa: E402

TEXT = "a red circle at the top left and a blue cross at the right of a green square"
TEXTS = ["what colour is the circle?", "a blue cross", "übermut 7", "  spaces  between ", ""]


def train(folder: Path, **options) -> Path:
    """A small unigram model as beit3.spm: <unk>, <s>, </s>, then pieces."""
    (folder / "text.txt").write_text("\n".join([TEXT] * 30), encoding="utf-8")
    spm.SentencePieceTrainer.train(
        input=str(folder / "text.txt"), model_prefix=str(folder / "beit3"), vocab_size=40,
        hard_vocab_limit=False, minloglevel=2, **options,
    )  # fmt: skip
    return (folder / "beit3.model").rename(folder / "beit3.spm")


def test_numbers_are_xlm_robertas(tmp_path: Path) -> None:
    """Theirs: the file's number and 1, but 3 for what is unknown, and <mask> behind all."""
    source = train(tmp_path)
    theirs = spm.SentencePieceProcessor(model_file=str(source))
    count = theirs.vocab_size()
    write_fairseq_order(source, tmp_path / "tokenizer.model", count + 10)
    ours: Any = load_tokenizer(tmp_path / "tokenizer.model")
    assert (ours.begin, ours.pad, ours.end, ours.mask) == (0, 1, 2, count + 1)
    assert ours.vocab_size == count + 10
    write_fairseq_order(source, tmp_path / "exact.model", count + 2)
    assert load_tokenizer(tmp_path / "exact.model").vocab_size == count + 2
    assert ours.inner.unk_id() == 3
    expected = [[n + 1 if n else 3 for n in ids] for ids in theirs.encode(TEXTS)]
    assert ours.encode(TEXTS) == expected and 3 in expected[2]
    assert ours.decode(ours.encode(["a blue cross"])[0]) == "a blue cross"
    assert ours.decode([0, *ours.encode(["a blue"])[0], 2, 1, count + 1, count + 5]) == "a blue"
    # No text is cut into what was added.
    assert count + 1 not in ours.encode(["<mask> <pad> <unused0>"])[0]


def test_what_is_no_such_model_is_named(tmp_path: Path) -> None:
    source = train(tmp_path, unk_id=3, bos_id=0, pad_id=1, eos_id=2)
    target = tmp_path / "tokenizer.model"
    with pytest.raises(ValueError, match="it begins with <s>, <pad>, </s>, not with <unk>"):
        write_fairseq_order(source, target, 100)
    source = train(tmp_path)
    with pytest.raises(ValueError, match=r"<mask> included, but the model's vocabulary size is 8"):
        write_fairseq_order(source, target, 8)
    for content in (b"no model", b"", source.read_bytes()[:-1]):
        (tmp_path / "damaged.spm").write_bytes(content)
        with pytest.raises(ValueError, match="is not a SentencePiece model"):
            write_fairseq_order(tmp_path / "damaged.spm", target, 100)
    with pytest.raises(FileNotFoundError, match="no tokenizer"):
        write_fairseq_order(tmp_path / "none.spm", target, 100)
    assert not target.exists()
