"""What generate and export need of a run: a language model and its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from magneto.config import ConfigError
from magneto.language.model import LanguageModel
from magneto.runs import OpenRun


@dataclass(frozen=True)
class LanguageModelRun:
    """A language model, its tokenizer, and the length it was trained on."""

    model: LanguageModel
    tokenizer: Any
    length: int


def language_model_run(opened: OpenRun) -> LanguageModelRun:
    """Return the language model of a run.

    Raises:
        ConfigError: If the run trains something else.
    """
    if not isinstance(opened.model, LanguageModel):
        raise ConfigError([f"the run's task is {opened.recipe.task}, not a language model"])
    tokenizer = getattr(opened.task, "tokenizer")  # noqa: B009  (only tasks of text have it)
    return LanguageModelRun(opened.model, tokenizer, opened.recipe.data.max_length)
