"""Write our models as directories that transformers reads."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from magneto.hf.configuration import (
    MagnetoConfig,
    MagnetoEncoderConfig,
    MagnetoImageConfig,
    MagnetoSeq2SeqConfig,
)
from magneto.hf.encoders import MagnetoEncoderModel, MagnetoForMaskedLM
from magneto.hf.images import MagnetoForImageClassification
from magneto.hf.modeling import MagnetoForCausalLM
from magneto.hf.registration import register
from magneto.hf.seq2seq import MagnetoForSeq2SeqLM
from magneto.models.image import ImageClassifier
from magneto.models.language import LanguageModel
from magneto.models.masked_language import MaskedLanguageModel
from magneto.models.text_encoder import TextEncoder
from magneto.models.translation import TranslationModel

WRAPPERS: dict[type[nn.Module], tuple[type[MagnetoConfig], type[PreTrainedModel]]] = {
    LanguageModel: (MagnetoConfig, MagnetoForCausalLM),
    TextEncoder: (MagnetoEncoderConfig, MagnetoEncoderModel),
    MaskedLanguageModel: (MagnetoEncoderConfig, MagnetoForMaskedLM),
    TranslationModel: (MagnetoSeq2SeqConfig, MagnetoForSeq2SeqLM),
    ImageClassifier: (MagnetoImageConfig, MagnetoForImageClassification),
}
AUTO = {
    "MagnetoForCausalLM": "AutoModelForCausalLM",
    "MagnetoEncoderModel": "AutoModel",
    "MagnetoForMaskedLM": "AutoModelForMaskedLM",
    "MagnetoForSeq2SeqLM": "AutoModelForSeq2SeqLM",
    "MagnetoForImageClassification": "AutoModelForImageClassification",
}
"""By which Auto class each of our wrappers is loaded."""


def wrap(model: nn.Module, end: int | None = None, **values: Any) -> PreTrainedModel:
    """Return a model of ours as transformers', in evaluation mode; the weights are shared.

    Args:
        model: Of ours.
        end: Number of the token that ends a document; it also begins and pads.
        **values: What else transformers' configuration has, `id2label` for example.

    Raises:
        ValueError: If there is no wrapper for it.
    """
    if type(model) not in WRAPPERS:
        known = ", ".join(kind.__name__ for kind in WRAPPERS)
        raise ValueError(f"no wrapper for a {type(model).__name__}, only for {known}")
    config_class, wrapper = WRAPPERS[type(model)]
    config = config_class.of(model.config, end, **values)  # type: ignore[arg-type]
    config.architectures = [wrapper.__name__]
    return wrapper(config, model).eval()  # type: ignore[call-arg]


def unwrap(wrapped: Any) -> nn.Module:
    """Return the model of ours in a transformers model of ours; the weights are shared."""
    if isinstance(wrapped, MagnetoForMaskedLM):
        model = MaskedLanguageModel(wrapped.config.core_config())
        model.text_encoder, model.head = wrapped.core, wrapped.head
        return model.eval()
    return wrapped.core


@contextmanager
def whole_directory(directory: Path) -> Iterator[Path]:
    """Yield a directory to write in; it takes its place when all is written, or never.

    Raises:
        FileExistsError: If the place is taken by something that is no empty directory.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise FileExistsError(f"{directory} is there already and not empty")
    aside = directory.absolute().with_name(f".{directory.absolute().name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        if directory.exists():
            directory.rmdir()
        aside.rename(directory)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def export(model: nn.Module, tokenizer: Any, directory: Path, length: int) -> str:
    """Write config.json, model.safetensors and the tokenizer, all or nothing.

    Args:
        model: In fp32, on the CPU.
        tokenizer: Of `magneto.data.tokenizer`; one with a tokenizer.json is written for
            transformers too.
        directory: Where; must not exist, or be empty.
        length: Tokens the model was trained on, told to the tokenizer.

    Returns:
        The name of the Auto class that loads it.

    Raises:
        FileExistsError: If the directory is not empty.
    """
    register()
    encodes = isinstance(model, MaskedLanguageModel | TextEncoder)
    special: dict[str, Any] = {}
    if encodes:
        special = {"bos_token_id": tokenizer.begin, "pad_token_id": tokenizer.pad}
    with whole_directory(directory) as aside:
        wrapped = wrap(model, tokenizer.end, **special)
        wrapped.save_pretrained(aside)
        tokenizer.save(aside)
        made = encoder_tokenizer if encodes else transformers_tokenizer
        fast = made(tokenizer, length)
        if fast is not None:
            fast.save_pretrained(aside)
    return AUTO[type(wrapped).__name__]


def transformers_tokenizer(tokenizer: Any, length: int) -> Any:
    """Return a PreTrainedTokenizerFast that pads on the left; None without a tokenizer.json."""
    end = _name(tokenizer, tokenizer.end)
    if end is None:
        return None
    return _fast(tokenizer.inner, length, "left", bos_token=end, eos_token=end, pad_token=end)


def encoder_tokenizer(tokenizer: Any, length: int) -> Any:
    """Return a PreTrainedTokenizerFast that begins each text as in training, or None."""
    end, begin = (_name(tokenizer, number) for number in (tokenizer.end, tokenizer.begin))
    if end is None or begin is None:
        return None
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    inner = Tokenizer.from_str(tokenizer.inner.to_str())
    inner.post_processor = TemplateProcessing(
        single=f"{begin} $A",
        pair=f"{begin} $A {end} $B",
        special_tokens=[(begin, tokenizer.begin), (end, tokenizer.end)],
    )
    names = {"pad_token": _name(tokenizer, tokenizer.pad), "eos_token": end, "bos_token": begin}
    if tokenizer.mask is not None:
        names["mask_token"] = _name(tokenizer, tokenizer.mask)
    return _fast(inner, length, "right", **names)


def _name(tokenizer: Any, number: int) -> str | None:
    inner = getattr(tokenizer, "inner", None)
    return (
        inner.id_to_token(number) if inner is not None and hasattr(inner, "id_to_token") else None
    )


def _fast(inner: Any, length: int, side: str, **names: str | None) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        model_max_length=length,
        padding_side=side,
        # Without this it adds token_type_ids, which these models have no use for.
        model_input_names=["input_ids", "attention_mask"],
        **names,
    )
