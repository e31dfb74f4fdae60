"""Our tokenizers as transformers': each puts inputs together as training did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class EncoderInput:
    """How an encoder's input is put together, and what its classes are called.

    Attributes:
        single: Of one text, "$A", with {begin}, {end} and {mask} for those tokens; ":1" behind a
            token or text says its token type.
        pair: Of two texts.
        types: Token types the model knows.
        labels: Names of the classes, in order; empty for none, or for a number.
        number: "number" if the answer is one.
    """

    single: str
    pair: str
    types: int = 0
    labels: Sequence[str] = ()
    number: Literal["none", "number"] = "none"

    def values(self) -> dict[str, Any]:
        """Return what transformers' configuration says of the answer."""
        if self.number == "number":
            return {"problem_type": "regression", "num_labels": 1}
        if not self.labels:
            return {}
        return named_classes(self.labels)


def named_classes(labels: Sequence[str]) -> dict[str, Any]:
    """Return what transformers' configuration says of classes with these names."""
    return {
        "problem_type": "single_label_classification",
        "id2label": dict(enumerate(labels)),
        "label2id": {label: number for number, label in enumerate(labels)},
    }


MASKED = EncoderInput(single="{begin} $A", pair="{begin} $A {end} $B")
"""What a masked language model reads in training: packed text after one token."""


def transformers_tokenizer(tokenizer: Any, length: int) -> Any:
    """Return a tokenizer of transformers that pads on the left; None for bytes."""
    end = _name(tokenizer, tokenizer.end)
    if end is None:
        return None
    names: dict[str, Any] = {"bos_token": end, "eos_token": end, "pad_token": end}
    if _is_sentencepiece(tokenizer):
        return _slow(tokenizer, length, "left", **names)
    return _fast(tokenizer.inner, length, "left", **names)


def encoder_tokenizer(tokenizer: Any, length: int, how: EncoderInput) -> Any:
    """Return a tokenizer of transformers that puts inputs together as in training, or None."""
    end, begin = (_name(tokenizer, number) for number in (tokenizer.end, tokenizer.begin))
    if end is None or begin is None:
        return None
    names = {"pad_token": _name(tokenizer, tokenizer.pad), "eos_token": end, "bos_token": begin}
    if tokenizer.mask is not None:
        names["mask_token"] = _name(tokenizer, tokenizer.mask)
    used = how.single + how.pair
    special = {"begin": begin, "end": end, "mask": names.get("mask_token")}
    single, pair = (each.format(**special) for each in (how.single, how.pair))
    if _is_sentencepiece(tokenizer):
        return _slow(tokenizer, length, "right", single, pair, how.types, **names)
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    inner = Tokenizer.from_str(tokenizer.inner.to_str())
    inner.post_processor = TemplateProcessing(
        single=single,
        pair=pair,
        special_tokens=[
            (name, getattr(tokenizer, kind))
            for kind, name in special.items()
            if f"{{{kind}}}" in used
        ],
    )
    return _fast(inner, length, "right", how.types, **names)


def translation_tokenizer(vocabulary: Any, length: int) -> Any:
    """Return a tokenizer of transformers that reads "<2de> text", or None.

    Args:
        vocabulary: Of `magneto.translation.vocabulary`: a tokenizer, and a tag per language.
        length: Tokens of a source at most.
    """
    tokenizer = vocabulary.tokenizer
    end = _name(tokenizer, tokenizer.end)
    if end is None:
        return None
    tags = [f"<2{language}>" for language in vocabulary.languages]
    if _is_sentencepiece(tokenizer):
        made = _slow(tokenizer, length, "right", f"$A {end}", eos_token=end, pad_token=end)
        made.add_tokens(tags, special_tokens=True)
        return made
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.processors import TemplateProcessing

    inner = Tokenizer.from_str(tokenizer.inner.to_str())
    inner.add_special_tokens([AddedToken(tag, rstrip=True, special=True) for tag in tags])
    numbers = [inner.token_to_id(tag) for tag in tags]
    if numbers != [vocabulary.tag(language) for language in vocabulary.languages]:
        return None  # the tokenizer's own numbers have gaps: tags would get others than in training
    inner.post_processor = TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, tokenizer.end)]
    )
    return _fast(inner, length, "right", eos_token=end, pad_token=end)


def _name(tokenizer: Any, number: int) -> str | None:
    if _is_sentencepiece(tokenizer):
        return tokenizer.inner.id_to_piece(number)
    inner = getattr(tokenizer, "inner", None)
    return (
        inner.id_to_token(number) if inner is not None and hasattr(inner, "id_to_token") else None
    )


def _is_sentencepiece(tokenizer: Any) -> bool:
    return hasattr(getattr(tokenizer, "inner", None), "id_to_piece")


def _slow(
    tokenizer: Any,
    length: int,
    side: str,
    single: str = "$A",
    pair: str = "$A $B",
    types: int = 0,
    **names: str | None,
) -> Any:
    from magneto.hf.sentencepiece_tokenizer import MagnetoSentencePieceTokenizer

    return MagnetoSentencePieceTokenizer(
        str(tokenizer.path),
        single,
        pair,
        model_max_length=length,
        padding_side=side,
        model_input_names=_input_names(types),
        **names,
    )


def _fast(inner: Any, length: int, side: str, types: int = 0, **names: str | None) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        model_max_length=length,
        padding_side=side,
        model_input_names=_input_names(types),
        **names,
    )


def _input_names(types: int) -> list[str]:
    # By default there are token_type_ids, which a model without token types has no use for.
    return ["input_ids", "attention_mask"] + ["token_type_ids"] * (types > 1)
