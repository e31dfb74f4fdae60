"""A SentencePiece model as transformers' tokenizer: the library itself does the cutting.

A tokenizer.json can't replace it: where two cuts of a text score alike ("AA A", "A AA"),
SentencePiece's single-precision sums choose, and `tokenizers` sums otherwise.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizer

from magneto.files import import_extra
from magneto.hf.auto_map import MODULE, WithoutCopies, write_module


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
