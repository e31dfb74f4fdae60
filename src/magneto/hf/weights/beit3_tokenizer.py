"""BEiT-3's SentencePiece model with the numbers that its authors give to pieces.

They read beit3.spm by XLM-RoBERTa's tokenizer, in fairseq's order: `<s>`, `<pad>`, `</s>`, `<unk>`,
then the pieces from the model's fourth on, then `<mask>`. The file itself begins with `<unk>`,
`<s>`, `</s>`. So it is written anew with its pieces in that order, and read as any other model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from magneto.files import import_extra

FILE_BEGINS = ["<unk>", "<s>", "</s>"]


def write_fairseq_order(source: Path, target: Path, size: int) -> None:
    """Write a SentencePiece model with its pieces in fairseq's order.

    Args:
        source: beit3.spm.
        target: The model to write.
        size: Pieces wanted, those of the word embedding; what lacks is filled with pieces that no
            text has (64,010 where beit3.spm gives 64,002).

    Raises:
        FileNotFoundError: If the source is not there.
        ValueError: If it is no SentencePiece model, has its pieces in another order, or too many.
        ModuleNotFoundError: If sentencepiece is not installed; names the extra that has it.
    """
    if not source.is_file():
        raise FileNotFoundError(f"no tokenizer {source}")
    name = "sentencepiece.sentencepiece_model_pb2"
    messages: Any = import_extra(name, "text", "this tokenizer needs sentencepiece")
    model = messages.ModelProto()
    try:
        model.ParseFromString(source.read_bytes())
    except Exception as error:  # protobuf's own
        raise ValueError(f"{source} is no SentencePiece model") from error
    pieces = list(model.pieces)
    if not pieces:
        raise ValueError(f"{source} is no SentencePiece model: it has no pieces")
    begins = [piece.piece for piece in pieces[: len(FILE_BEGINS)]]
    if begins != FILE_BEGINS:
        raise ValueError(f"{source} is no SentencePiece model as BEiT-3's: it begins with "
                         f"{', '.join(begins)}, not with {', '.join(FILE_BEGINS)}")  # fmt: skip

    def control(word: str) -> Any:  # no text is cut into it
        kind = messages.ModelProto.SentencePiece
        return kind(piece=word, score=0.0, type=kind.CONTROL)

    made = [control("<s>"), control("<pad>"), control("</s>"), pieces[0]]
    made += [*pieces[len(FILE_BEGINS) :], control("<mask>")]
    if len(made) > size:
        raise ValueError(f"{source} has {len(made):,} pieces with <mask>, the model {size:,} words")
    made += [control(f"<unused{number}>") for number in range(size - len(made))]
    ordered = messages.ModelProto()
    ordered.CopyFrom(model)
    del ordered.pieces[:]
    ordered.pieces.extend(made)
    target.write_bytes(ordered.SerializeToString())
