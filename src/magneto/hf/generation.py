"""Continue a prompt: transformers' `generate`, with our cache-aware decoder under it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from magneto.hf.configuration import MagnetoConfig
from magneto.hf.modeling import MagnetoForCausalLM
from magneto.models.language import LanguageModel


@dataclass(frozen=True)
class Sampling:
    """How to choose the next token.

    Attributes:
        new_tokens: At most so many.
        temperature: 0 for the most likely token.
        top_k: Choose among so many; 0 for all.
        top_p: Choose among the most likely tokens that together have this probability.
        beams: Beam search with so many beams instead of sampling, if more than 1.
        count: Continuations to return.
        seed: Of the sampling.
    """

    new_tokens: int = 100
    temperature: float = 0.8
    top_k: int = 50
    top_p: float = 1.0
    beams: int = 1
    count: int = 1
    seed: int = 0


@torch.no_grad()
def generate(model: LanguageModel, tokenizer: Any, prompt: str, how: Sampling) -> list[str]:
    """Return continuations of a prompt, the prompt included.

    Raises:
        ValueError: For settings that make no sense together.
    """
    if how.beams > 1 and how.count > how.beams:
        raise ValueError(f"beam search with {how.beams} beams has at most as many results")
    wrapped: Any = MagnetoForCausalLM(MagnetoConfig.of(model.config, tokenizer.end), model).eval()
    device = next(model.parameters()).device
    start = tokenizer.encode([prompt])[0] if prompt else [tokenizer.end]
    tokens = torch.tensor([start or [tokenizer.end]], device=device)
    sample = how.beams == 1 and how.temperature > 0
    chosen: dict[str, Any] = {"num_beams": how.beams, "do_sample": sample}
    if sample:
        chosen |= {"temperature": how.temperature, "top_k": how.top_k, "top_p": how.top_p}
    torch.manual_seed(how.seed)
    output: Any = wrapped.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=how.new_tokens,
        num_return_sequences=how.count if sample or how.beams > 1 else 1,
        **chosen,
    )
    return [tokenizer.decode(row) for row in output.tolist()]
