"""Our tokenizers as transformers': each puts inputs together as training did.

A SentencePiece model stays one: the library itself does the cutting. A tokenizer.json can't replace
it: where two cuts of a text score alike ("AA A", "A AA"), SentencePiece's single-precision sums
choose, and `tokenizers` sums otherwise.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

from magneto.files import import_extra
from magneto.hf.configuration import MODULE, WithoutCopies, write_module


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
        kind = {"problem_type": "single_label_classification"} if self.labels else {}
        return kind | class_names(self.labels)


def class_names(labels: Sequence[str]) -> dict[str, Any]:
    """Return what transformers' configuration says of classes with these names, if any."""
    if not labels:
        return {}
    return {
        "id2label": dict(enumerate(labels)),
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def special_tokens(tokenizer: Any) -> dict[str, int | None]:
    """Return what transformers' configuration says of special tokens, but the end's."""
    held = {"bos": tokenizer.begin, "pad": tokenizer.pad, "mask": tokenizer.mask}
    return {f"{name}_token_id": number for name, number in held.items()}


MASKED = EncoderInput(single="{begin} $A", pair="{begin} $A {end} $B")
"""What a masked language model reads in training: packed text after one token."""
FRAMED = EncoderInput(single="{begin} $A {end}", pair="{begin} $A {end} $B {end}")
"""What a model of vision and language reads, as `frame_text` puts it together."""
MASKED_AT_END = EncoderInput(
    single="{begin} $A {mask} {end}", pair="{begin} $A {end} $B {mask} {end}"
)
"""The same, with the mask that a head reads."""
PLAIN = EncoderInput(single="$A", pair="$A $B")
"""What a decoder reads."""
ENDED = EncoderInput(single="$A {end}", pair="$A $B {end}")
"""What a translation model reads."""


def transformers_tokenizer(tokenizer: Any, length: int) -> Any:
    """Return a tokenizer of transformers that pads on the left; None for bytes."""
    return _tokenizer(tokenizer, length, PLAIN, {"bos": "end", "eos": "end", "pad": "end"}, "left")


def encoder_tokenizer(tokenizer: Any, length: int, how: EncoderInput) -> Any:
    """Return a tokenizer of transformers that puts inputs together as in training, or None."""
    names = {"bos": "begin", "eos": "end", "pad": "pad", "mask": "mask"}
    return _tokenizer(tokenizer, length, how, names)


def translation_tokenizer(vocabulary: Any, length: int) -> Any:
    """Return a tokenizer of transformers that reads "<2de> text", or None."""
    tags = {f"<2{language}>": vocabulary.tag(language) for language in vocabulary.languages}
    made = _tokenizer(vocabulary.tokenizer, length, ENDED, {"eos": "end", "pad": "end"}, tags=tags)
    # Where the tokenizer's own numbers have gaps, tags would get others than in training.
    fits = made is not None and made.convert_tokens_to_ids(list(tags)) == list(tags.values())
    return made if fits else None


def _tokenizer(
    tokenizer: Any,
    length: int,
    how: EncoderInput,
    names: Mapping[str, str],
    side: str = "right",
    tags: Iterable[str] = (),
) -> Any:
    """Return a tokenizer of ours as transformers', or None.

    `names` are what transformers calls special tokens of ours, "bos" for example; `tags` are added.
    """
    inner: Any = getattr(tokenizer, "inner", None)
    name = getattr(inner, "id_to_piece", getattr(inner, "id_to_token", None))
    if name is None:
        return None
    numbers = {kind: getattr(tokenizer, kind) for kind in ("begin", "end", "pad", "mask")}
    words = {kind: None if n is None else name(n) for kind, n in numbers.items()}
    if words["begin"] is None and "begin" in names.values():
        return None
    single, pair = (each.format(**words) for each in (how.single, how.pair))
    told: dict[str, Any] = {
        "model_max_length": length,
        "padding_side": side,
        # By default there are token_type_ids, which a model without token types has no use for.
        "model_input_names": ["input_ids", "attention_mask"] + ["token_type_ids"] * (how.types > 1),
        **{f"{theirs}_token": words[ours] for theirs, ours in names.items() if words[ours]},
    }
    if hasattr(inner, "id_to_piece"):
        made = MagnetoSentencePieceTokenizer(str(tokenizer.path), single, pair, **told)
        made.add_tokens(list(tags), special_tokens=True)
        return made
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.processors import TemplateProcessing

    fast = Tokenizer.from_str(inner.to_str())
    fast.add_special_tokens([AddedToken(tag, rstrip=True, special=True) for tag in tags])
    if how is not PLAIN:
        known = {word: numbers[kind] for kind, word in words.items() if word}
        special = [(word, number) for word, number in known.items() if word in single + pair]
        fast.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=special)
    return PreTrainedTokenizerFast(tokenizer_object=fast, **told)


class MagnetoSentencePieceTokenizer(WithoutCopies, PreTrainedTokenizer):
    """A SentencePiece model's own pieces, put together as in training.

    In a text, names of special tokens are those tokens, with the space before them; what follows
    one is cut as the middle of a text.
    """

    # Not tokenizer.model: transformers alone would read that, and cut texts otherwise.
    vocab_files_names = {"vocab_file": "sentencepiece.model"}  # noqa: RUF012
    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012

    def __init__(
        self, vocab_file: str | None, single: str = "$A", pair: str = "$A $B", **kwargs: Any
    ) -> None:
        """Load a model.

        Args:
            vocab_file: The model.
            single: How the input of one text is put together: "$A" and names of special tokens,
                with ":1" behind what has token type 1.
            pair: The same, of two texts, "$A" and "$B".
            **kwargs: Of transformers' class.

        Raises:
            OSError: If transformers found no such file.
            ModuleNotFoundError: If sentencepiece is not installed; names the extra that has it.
        """
        if vocab_file is None:
            raise OSError(f"there is no {self.vocab_files_names['vocab_file']}")
        self.vocab_file = str(vocab_file)
        library = import_extra("sentencepiece", "text", "this tokenizer needs sentencepiece")
        self.inner: Any = library.SentencePieceProcessor(model_file=self.vocab_file)
        self.single, self.pair = single, pair
        kwargs["auto_map"] = {"AutoTokenizer": [f"{MODULE}.{type(self).__name__}", None]}
        super().__init__(single=single, pair=pair, **kwargs)

    @property
    def vocab_size(self) -> int:
        """Pieces; special tokens that were added are not among them."""
        return self.inner.vocab_size()

    def get_vocab(self) -> dict[str, int]:
        """Return the numbers of all pieces and added tokens."""
        pieces = {self.inner.id_to_piece(n): n for n in range(self.vocab_size)}
        return pieces | self.added_tokens_encoder

    def tokenize(self, text: str, **kwargs: Any) -> list[str]:
        """Return the pieces of a text."""
        names = sorted(self.added_tokens_encoder, key=len, reverse=True)
        whole = not names or kwargs.get("split_special_tokens", self.split_special_tokens)
        parts = [text] if whole else re.split(f" ?({'|'.join(map(re.escape, names))})", text)
        pieces = self.inner.encode(parts[0], out_type=str)
        for name, part in zip(parts[1::2], parts[2::2], strict=True):
            # What begins a text gets a space in front; behind a line end it does not.
            pieces += [name, *self.inner.encode("\n" + part, out_type=str)[len(self._line_end) :]]
        return pieces

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Return the text of pieces, and names of special tokens as they are."""
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

    def _put_together(self, first: list[int], second: list[int] | None) -> list[tuple[int, int]]:
        """Return (token, its type) of an input; the type is negative for special tokens."""
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
        """Return the tokens of an input."""
        return [token for token, _ in self._put_together(token_ids_0, token_ids_1)]

    def create_token_type_ids_from_sequences(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        """Return the token types of an input."""
        kinds = [kind for _, kind in self._put_together(token_ids_0, token_ids_1)]
        return [kind if kind >= 0 else -1 - kind for kind in kinds]

    def get_special_tokens_mask(
        self,
        token_ids_0: list[int],
        token_ids_1: list[int] | None = None,
        already_has_special_tokens: bool = False,
    ) -> list[int]:
        """Return 1 for special tokens, 0 for others."""
        if already_has_special_tokens:
            special = set(self.all_special_ids)
            return [int(token in special) for token in token_ids_0]
        return [int(kind < 0) for _, kind in self._put_together(token_ids_0, token_ids_1)]

    def save_vocabulary(
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        """Copy the model, and write the module that the `auto_map` names."""
        write_module(save_directory)
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        path = Path(save_directory, prefix + self.vocab_files_names["vocab_file"])
        if path.absolute() != Path(self.vocab_file).absolute():
            shutil.copyfile(self.vocab_file, path)
        return (str(path),)
