"""Tokenizers for transformers, with the input templates of training.

A SentencePiece model runs in SentencePiece's own library, because a tokenizer.json cannot replace
it. If two segmentations of a text have equal scores ("AA A", "A AA"), rounding errors decide.
Rounding errors differ between SentencePiece and `tokenizers`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

from magneto.files import import_extra
from magneto.hf.configuration import MODULE, WithoutCopies, write_module


@dataclass(frozen=True)
class EncoderInput:
    """Input template and classes of an encoder.

    Attributes:
        single: Template of one text, where "$A" is the text, {begin}, {end} and {mask} are special
            tokens, and ":1" after a text or token sets the token type 1.
        pair: Template of two texts, which are "$A" and "$B".
        types: Number of token types of the model.
        labels: Class names in order; empty without classes.
        regression: Whether the model predicts a number.
    """

    single: str
    pair: str
    types: int = 0
    labels: Sequence[str] = ()
    regression: bool = False

    def values(self) -> dict[str, Any]:
        if self.regression:
            return {"problem_type": "regression", "num_labels": 1}
        kind = {"problem_type": "single_label_classification"} if self.labels else {}
        return kind | class_names(self.labels)


def class_names(labels: Sequence[str]) -> dict[str, Any]:
    """Return the transformers configuration's fields of class names; {} without names."""
    if not labels:
        return {}
    return {
        "id2label": dict(enumerate(labels)),
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def special_tokens(tokenizer: Any) -> dict[str, int | None]:
    held = {"bos": tokenizer.begin, "pad": tokenizer.pad, "mask": tokenizer.mask}
    return {f"{name}_token_id": number for name, number in held.items()}


MASKED = EncoderInput(single="{begin} $A", pair="{begin} $A {end} $B")
"""Template of masked language models."""
FRAMED = EncoderInput(single="{begin} $A {end}", pair="{begin} $A {end} $B {end}")
"""Template of vision-language models."""
MASKED_AT_END = EncoderInput(
    single="{begin} $A {mask} {end}", pair="{begin} $A {end} $B {mask} {end}"
)
"""Template of vision-language models whose head reads the mask token."""
PLAIN = EncoderInput(single="$A", pair="$A $B")
"""Template of decoders."""
ENDED = EncoderInput(single="$A {end}", pair="$A $B {end}")
"""Template of translation models."""


def transformers_tokenizer(tokenizer: Any, length: int) -> Any:
    """Return a transformers tokenizer that pads on the left; None for a byte tokenizer."""
    return _tokenizer(tokenizer, length, PLAIN, {"bos": "end", "eos": "end", "pad": "end"}, "left")


def encoder_tokenizer(tokenizer: Any, length: int, template: EncoderInput) -> Any:
    """Return a transformers tokenizer with a template; None for a byte tokenizer."""
    names = {"bos": "begin", "eos": "end", "pad": "pad", "mask": "mask"}
    return _tokenizer(tokenizer, length, template, names)


def translation_tokenizer(vocabulary: Any, length: int) -> Any:
    """Return a transformers tokenizer for tagged text ("<2de> text"); None if impossible."""
    tags = {f"<2{language}>": vocabulary.tag(language) for language in vocabulary.languages}
    made = _tokenizer(vocabulary.tokenizer, length, ENDED, {"eos": "end", "pad": "end"}, tags=tags)
    # If the tokenizer's numbers have gaps, tags would get other numbers than in training.
    fits = made is not None and made.convert_tokens_to_ids(list(tags)) == list(tags.values())
    return made if fits else None


def _tokenizer(
    tokenizer: Any,
    length: int,
    template: EncoderInput,
    names: Mapping[str, str],
    side: str = "right",
    tags: Iterable[str] = (),
) -> Any:
    """Convert a tokenizer to a transformers tokenizer; return None if that is impossible.

    `names` maps transformers' special tokens ("bos") to Magneto's ("begin"); `tags` are added as
    special tokens.
    """
    inner: Any = getattr(tokenizer, "inner", None)
    name = getattr(inner, "id_to_piece", getattr(inner, "id_to_token", None))
    if name is None:
        return None
    numbers = {kind: getattr(tokenizer, kind) for kind in ("begin", "end", "pad", "mask")}
    words = {kind: None if n is None else name(n) for kind, n in numbers.items()}
    if words["begin"] is None and "begin" in names.values():
        return None
    single, pair = (each.format(**words) for each in (template.single, template.pair))
    types = ["token_type_ids"] if template.types > 1 else []
    options: dict[str, Any] = {
        "model_max_length": length,
        "padding_side": side,
        # By default transformers adds token_type_ids.
        "model_input_names": ["input_ids", "attention_mask", *types],
        **{f"{theirs}_token": words[ours] for theirs, ours in names.items() if words[ours]},
    }
    if hasattr(inner, "id_to_piece"):
        made = MagnetoSentencePieceTokenizer(str(tokenizer.path), single, pair, **options)
        made.add_tokens(list(tags), special_tokens=True)
        return made
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.processors import TemplateProcessing

    fast = Tokenizer.from_str(inner.to_str())
    fast.add_special_tokens([AddedToken(tag, rstrip=True, special=True) for tag in tags])
    if template is not PLAIN:
        known = {word: numbers[kind] for kind, word in words.items() if word}
        special = [(word, number) for word, number in known.items() if word in single + pair]
        fast.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=special)
    return PreTrainedTokenizerFast(tokenizer_object=fast, **options)


class MagnetoSentencePieceTokenizer(WithoutCopies, PreTrainedTokenizer):
    """SentencePiece tokenizer with the input template of training.

    A special token's name in a text becomes that special token and takes the space before it. Text
    after a special token is tokenised like the middle of a text.
    """

    # transformers would read a tokenizer.model itself, with other results.
    vocab_files_names = {"vocab_file": "sentencepiece.model"}  # noqa: RUF012
    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012

    def __init__(
        self, vocab_file: str | None, single: str = "$A", pair: str = "$A $B", **kwargs: Any
    ) -> None:
        """Load a SentencePiece model.

        Args:
            vocab_file: Path of the SentencePiece model.
            single: Template of one text, such as "<s> $A </s>". "$A" is the text, and ":1" after a
                text or token sets the token type 1.
            pair: Template of two texts, such as "<s> $A </s> $B </s>".
            **kwargs: Arguments of the transformers base class.

        Raises:
            OSError: If transformers found no SentencePiece model.
            ModuleNotFoundError: If sentencepiece is not installed.
        """
        if vocab_file is None:
            raise OSError(f"no file {self.vocab_files_names['vocab_file']}")
        self.vocab_file = str(vocab_file)
        library = import_extra("sentencepiece", "text", "this tokenizer needs sentencepiece")
        self.inner: Any = library.SentencePieceProcessor(model_file=self.vocab_file)
        self.single, self.pair = single, pair
        kwargs["auto_map"] = {"AutoTokenizer": [f"{MODULE}.{type(self).__name__}", None]}
        super().__init__(single=single, pair=pair, **kwargs)

    @property
    def vocab_size(self) -> int:
        return self.inner.vocab_size()

    def get_vocab(self) -> dict[str, int]:
        pieces = {self.inner.id_to_piece(n): n for n in range(self.vocab_size)}
        return pieces | self.added_tokens_encoder

    def tokenize(self, text: str, **kwargs: Any) -> list[str]:
        names = sorted(self.added_tokens_encoder, key=len, reverse=True)
        plain = not names or kwargs.get("split_special_tokens", self.split_special_tokens)
        parts = [text] if plain else re.split(f" ?({'|'.join(map(re.escape, names))})", text)
        pieces = self.inner.encode(parts[0], out_type=str)
        for name, part in zip(parts[1::2], parts[2::2], strict=True):
            # SentencePiece adds a space at the start of a text, but not after a line end.
            pieces += [name, *self.inner.encode("\n" + part, out_type=str)[len(self._line_end) :]]
        return pieces

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        special = self.added_tokens_encoder
        text, run = "", []
        for token in tokens:
            if token in special:
                text += self._text(run, begins=not text) + token
                run = []
            else:
                run.append(self.inner.piece_to_id(token))
        return text + self._text(run, begins=not text)

    def _text(self, run: list[int], begins: bool) -> str:
        return self.inner.decode(run) if begins else self.inner.decode(self._line_end + run)[1:]

    @property
    def _line_end(self) -> list[int]:
        return self.inner.encode("\n")

    def _convert_token_to_id(self, token: str) -> int:
        return self.inner.piece_to_id(token)

    def _convert_id_to_token(self, index: int) -> str:
        return self.inner.id_to_piece(index)

    def _fill_template(self, first: list[int], second: list[int] | None) -> list[tuple[int, int]]:
        """Return pairs (token, token type); a special token of type t has the type -1 - t."""
        made = []
        for word in (self.single if second is None else self.pair).split():
            name, _, kind = word.partition(":")
            if name in ("$A", "$B"):
                tokens = first if name == "$A" else second or []
                made += [(token, int(kind or 0)) for token in tokens]
            else:
                made.append((int(self.convert_tokens_to_ids(name)), -1 - int(kind or 0)))  # type: ignore[arg-type]
        return made

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        return [token for token, _ in self._fill_template(token_ids_0, token_ids_1)]

    def create_token_type_ids_from_sequences(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        kinds = [kind for _, kind in self._fill_template(token_ids_0, token_ids_1)]
        return [kind if kind >= 0 else -1 - kind for kind in kinds]

    def get_special_tokens_mask(
        self,
        token_ids_0: list[int],
        token_ids_1: list[int] | None = None,
        already_has_special_tokens: bool = False,
    ) -> list[int]:
        if already_has_special_tokens:
            special = set(self.all_special_ids)
            return [int(token in special) for token in token_ids_0]
        return [int(kind < 0) for _, kind in self._fill_template(token_ids_0, token_ids_1)]

    def save_vocabulary(
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        write_module(save_directory)
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        path = Path(save_directory, prefix + self.vocab_files_names["vocab_file"])
        if path.absolute() != Path(self.vocab_file).absolute():
            shutil.copyfile(self.vocab_file, path)
        return (str(path),)
