"""Write a language model as a directory that transformers reads."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from magneto.hf.configuration import MagnetoConfig
from magneto.hf.modeling import MagnetoForCausalLM
from magneto.hf.registration import register
from magneto.models.language import LanguageModel


def export(model: LanguageModel, tokenizer: Any, directory: Path, length: int) -> None:
    """Write config.json, model.safetensors and the tokenizer, all or nothing.

    Args:
        model: In fp32, on the CPU.
        tokenizer: Of `magneto.data.tokenizer`; one with a tokenizer.json is written for
            transformers too.
        directory: Where; must not exist, or be empty.
        length: Tokens the model was trained on, told to the tokenizer.

    Raises:
        FileExistsError: If the directory is not empty.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise FileExistsError(f"{directory} is there already and not empty")
    register()
    aside = directory.with_name(f".{directory.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        config = MagnetoConfig.of(model.config, tokenizer.end)
        config.architectures = ["MagnetoForCausalLM"]
        MagnetoForCausalLM(config, model).save_pretrained(aside)
        tokenizer.save(aside)
        fast = transformers_tokenizer(tokenizer, length)
        if fast is not None:
            fast.save_pretrained(aside)
        if directory.exists():
            directory.rmdir()
        aside.rename(directory)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def transformers_tokenizer(tokenizer: Any, length: int) -> Any:
    """Return a PreTrainedTokenizerFast, or None if the tokenizer has no tokenizer.json."""
    inner = getattr(tokenizer, "inner", None)
    if inner is None or not hasattr(inner, "id_to_token"):
        return None
    from transformers import PreTrainedTokenizerFast

    end = inner.id_to_token(tokenizer.end)
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token=end,
        eos_token=end,
        pad_token=end,
        model_max_length=length,
        padding_side="left",
        # Without this it adds token_type_ids, which a decoder has no use for.
        model_input_names=["input_ids", "attention_mask"],
    )
