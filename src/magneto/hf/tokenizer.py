"""Our tokenizers as transformers': each puts inputs together as training did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class EncoderInput:
    """How an encoder's input is put together, and what its classes are called.

    Attributes:
        single: Of one text, "$A", with {begin} and {end} for those tokens; ":1" behind a token or
            text says its token type.
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
        return {
            "problem_type": "single_label_classification",
            "id2label": dict(enumerate(self.labels)),
            "label2id": {label: number for number, label in enumerate(self.labels)},
        }


MASKED = EncoderInput(single="{begin} $A", pair="{begin} $A {end} $B")
"""What a masked language model reads in training: packed text after one token."""


def transformers_tokenizer(tokenizer: Any, length: int) -> Any:
    """Return a PreTrainedTokenizerFast that pads on the left; None without a tokenizer.json."""
    end = _name(tokenizer, tokenizer.end)
    if end is None:
        return None
    return _fast(tokenizer.inner, length, "left", bos_token=end, eos_token=end, pad_token=end)


def encoder_tokenizer(tokenizer: Any, length: int, how: EncoderInput) -> Any:
    """Return a PreTrainedTokenizerFast that puts inputs together as in training, or None."""
    end, begin = (_name(tokenizer, number) for number in (tokenizer.end, tokenizer.begin))
    if end is None or begin is None:
        return None
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    inner = Tokenizer.from_str(tokenizer.inner.to_str())
    inner.post_processor = TemplateProcessing(
        single=how.single.format(begin=begin, end=end),
        pair=how.pair.format(begin=begin, end=end),
        special_tokens=[(begin, tokenizer.begin), (end, tokenizer.end)],
    )
    names = {"pad_token": _name(tokenizer, tokenizer.pad), "eos_token": end, "bos_token": begin}
    if tokenizer.mask is not None:
        names["mask_token"] = _name(tokenizer, tokenizer.mask)
    return _fast(inner, length, "right", how.types, **names)


def translation_tokenizer(vocabulary: Any, length: int) -> Any:
    """Return a PreTrainedTokenizerFast that reads "<2de> text", or None.

    Args:
        vocabulary: Of `magneto.data.vocabulary`: a tokenizer, and a tag per language.
        length: Tokens of a source at most.
    """
    tokenizer = vocabulary.tokenizer
    end = _name(tokenizer, tokenizer.end)
    if end is None:
        return None
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.processors import TemplateProcessing

    inner = Tokenizer.from_str(tokenizer.inner.to_str())
    tags = [f"<2{language}>" for language in vocabulary.languages]
    inner.add_special_tokens([AddedToken(tag, rstrip=True, special=True) for tag in tags])
    numbers = [inner.token_to_id(tag) for tag in tags]
    if numbers != [vocabulary.tag(language) for language in vocabulary.languages]:
        return None  # the tokenizer's own numbers have gaps: tags would get others than in training
    inner.post_processor = TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, tokenizer.end)]
    )
    return _fast(inner, length, "right", eos_token=end, pad_token=end)


def _name(tokenizer: Any, number: int) -> str | None:
    inner = getattr(tokenizer, "inner", None)
    return (
        inner.id_to_token(number) if inner is not None and hasattr(inner, "id_to_token") else None
    )


def _fast(inner: Any, length: int, side: str, types: int = 0, **names: str | None) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        model_max_length=length,
        padding_side=side,
        # By default it gives token_type_ids, which a model without token types has no use for.
        model_input_names=["input_ids", "attention_mask"] + ["token_type_ids"] * (types > 1),
        **names,
    )
