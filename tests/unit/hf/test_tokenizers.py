"""Tokenizers in transformers give the tokens of training, and pipelines accept them."""

import random
from copy import copy
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("sentencepiece")

from magneto import hf  # noqa: E402
from magneto.data.tokenizer import (  # noqa: E402
    SPECIAL,
    load_tokenizer,
    train_bpe,
    train_sentencepiece,
)
from magneto.hf.export import ASSETS  # noqa: E402
from magneto.hf.processors import encoder_tokenizer, transformers_tokenizer  # noqa: E402
from magneto.hf.processors import translation_tokenizer as for_translation  # noqa: E402
from magneto.language.config import (  # noqa: E402
    ClassificationDataConfig,
    MaskedLanguageModelConfig,
    TextClassifierConfig,
)
from magneto.language.labelled_texts import build_input  # noqa: E402
from magneto.language.models import MaskedLanguageModel  # noqa: E402
from magneto.translation.prepare import TranslationVocabulary  # noqa: E402
from tests.unit.hf.kinds import STACK, export_text  # noqa: E402

ODD = [
    "", " ", "  ", "the dog", " leads", "  two", "ends ", "a\nb\n\n c", "\n", "\r\n\t\x00", "naïve",
    "東京 🙂 ﬁ Å ①", "▁ ▁▁", "<0x41> <0xFF>", "<unk>", "<2de>", "AAA AAAA hahaha", "no\u00a0break",
]  # fmt: skip
SIZE: dict[str, Any] = {**STACK, "layers": 1, "vocab_size": 320, "max_length": 32}


def trained(kind: str, folder: Path) -> Any:
    lines = [f"The quick brown fox {i} jumps over the lazy dog. AAA hahaha!" for i in range(200)]
    path = folder / ("tokenizer.json" if kind == "byte-bpe" else "sp.model")
    if kind == "byte-bpe":
        train_bpe(lines, 320, path, SPECIAL)
    else:
        path.write_bytes(train_sentencepiece(lines, kind, 320, 200))
    return load_tokenizer(path)


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def ours(request, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return trained(request.param, tmp_path_factory.mktemp(request.param))


def saved(made: Any, folder: Path) -> Any:
    """Save a tokenizer with transformers, and load it again."""
    hf.register()
    made.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def texts() -> list[str]:
    draw = random.Random(0)
    letters = "aab A\n hox.é🙂<>\t"
    return ODD + ["".join(draw.choices(letters, k=draw.randint(1, 30))) for _ in range(500)]


def test_every_text_has_the_tokens_of_training_and_is_decoded(ours: Any, tmp_path: Path) -> None:
    made = saved(transformers_tokenizer(ours, 32), tmp_path)
    assert type(made) is hf.MagnetoSentencePieceTokenizer
    assert (made.model_max_length, made.padding_side) == (32, "left")
    known = ours.encode(texts())
    assert made(texts())["input_ids"] == known
    for tokens in known:
        assert made.decode(tokens) == ours.decode(tokens)
    assert len(made) == ours.vocab_size and made.eos_token_id == ours.end


def test_special_tokens_in_a_text(ours: Any, tmp_path: Path) -> None:
    made = saved(encoder_tokenizer(ours, 32, hf.MASKED), tmp_path)
    begin, mask = ours.begin, ours.mask
    whole = ours.encode(["The lazy dog."])[0]
    cut = len(ours.encode(["The"])[0]), len(ours.encode(["The lazy"])[0])
    ids = made("The <mask> dog.")["input_ids"]
    assert ids == [begin, *whole[: cut[0]], mask, *whole[cut[1] :]]
    special = made.get_special_tokens_mask(ids, already_has_special_tokens=True)
    assert special == [int(token in (begin, mask)) for token in ids]
    assert made.decode(ids) == "<s> The<mask> dog."
    assert made.decode(ids, skip_special_tokens=True) == "The dog."
    assert made("The lazy <mask>.")["input_ids"] == [
        begin, *whole[: cut[1]], mask, *ours.encode(["\n."])[0][len(ours.encode(["\n"])[0]) :]
    ]  # fmt: skip
    assert made("x", return_special_tokens_mask=True)["special_tokens_mask"][:2] == [1, 0]


def test_pairs_have_token_types(ours: Any, tmp_path: Path) -> None:
    how = hf.EncoderInput(
        single="{begin} $A {end}", pair="{begin} $A {end} {end} $B:1 {end}:1", types=2
    )
    made = saved(encoder_tokenizer(ours, 32, how), tmp_path)
    a, b = ours.encode(["the dog", " over"])
    given = made(["the dog", "x"], [" over", "y"], padding=True)
    row = [ours.begin, *a, ours.end, ours.end, *b, ours.end]
    assert given["input_ids"][0] == row
    assert given["token_type_ids"][0] == [0] * (len(a) + 3) + [1] * (len(b) + 1)
    fill = len(row) - sum(given["attention_mask"][1])
    assert fill > 0 and given["input_ids"][1][-fill:] == [ours.pad] * fill


def test_tags_of_translation(ours: Any, tmp_path: Path) -> None:
    vocabulary = TranslationVocabulary(ours, ("de", "fr"))
    made = saved(for_translation(vocabulary, 32), tmp_path)
    source = vocabulary.encode_source(["the fox  jumps"], "fr")[0]
    assert made("<2fr> the fox  jumps")["input_ids"] == source
    assert made.decode(source, skip_special_tokens=True).strip() == "the fox  jumps"
    gap = copy(ours)
    gap.vocab_size += 1  # the tags would get other numbers
    assert for_translation(TranslationVocabulary(gap, ("de", "fr")), 32) is None


@pytest.mark.parametrize("separator", ["single", "double"])
def test_a_classifier_reads_pairs_as_in_training(separator: Any, tmp_path: Path) -> None:
    trained("byte-bpe", tmp_path)
    how: dict[str, Any] = {"tokenizer": str(tmp_path), "max_length": 30, "separator": separator}
    data = ClassificationDataConfig(**how, labels=("no", "yes"))
    assets = ASSETS["text-classification"](TextClassifierConfig(**SIZE, token_types=2), data)
    text, pair = assets.tokenizer.encode(["the dog", " over"])
    given = assets.processors[0]("the dog", " over")
    row, begin, _ = build_input(text, pair, assets.tokenizer, data)
    assert given["input_ids"] == row
    assert given["token_type_ids"] == [0] * begin + [1] * (len(row) - begin)
    assert assets.values["id2label"] == {0: "no", 1: "yes"}
    number = ASSETS["text-classification"](
        TextClassifierConfig(**SIZE), ClassificationDataConfig(**how, target="number")
    )
    assert (number.values["problem_type"], number.values["num_labels"]) == ("regression", 1)
    assert "token_type_ids" not in number.processors[0]("a", "b")


@pytest.mark.parametrize("kind", ["unigram", "byte-bpe"])
@torch.no_grad()
def test_an_exported_directory_runs_in_a_pipeline(kind: str, tmp_path: Path) -> None:
    hf.register()
    ours = trained(kind, tmp_path)
    masked = MaskedLanguageModel(MaskedLanguageModelConfig(**SIZE)).eval()
    export_text(masked, ours, tmp_path / "masked", 32, hf.MASKED)
    place = str(tmp_path / "masked")
    pipe = transformers.pipeline("fill-mask", model=place, top_k=3)
    config = pipe.model.config
    given = (config.bos_token_id, config.eos_token_id, config.pad_token_id)
    assert given == (ours.begin, ours.end, ours.pad)
    guesses = pipe("The lazy <mask>.")
    row = pipe.tokenizer("The lazy <mask>.")["input_ids"]
    assert row[0] == ours.begin and pipe.tokenizer.model_max_length == 32
    shares = masked(torch.tensor([row]))[0, row.index(ours.mask)].softmax(-1)
    assert [guess["token"] for guess in guesses] == shares.topk(3).indices.tolist()
    features = transformers.pipeline("feature-extraction", model=place)("The lazy dog.")
    ids = torch.tensor([[ours.begin, *ours.encode(["The lazy dog."])[0]]])
    assert (torch.tensor(features[0]) - masked.text_encoder(ids)[0]).abs().max() <= 1e-5
    assert not (tmp_path / "masked" / "tokenizer.model").exists()
    assert load_tokenizer(tmp_path / "masked").encode(ODD) == ours.encode(ODD)
