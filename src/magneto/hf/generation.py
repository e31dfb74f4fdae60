"""Continue a prompt: transformers' `generate`, with our cache-aware decoder under it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from magneto.config import ConfigError
from magneto.hf.configuration import MagnetoConfig
from magneto.hf.language import MagnetoForCausalLM
from magneto.language.models import LanguageModel
from magneto.nn.config import wrong_sizes


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

    Raises:
        ValueError: For values that make no sense, alone or together; all of them in one message.
    """

    new_tokens: int = 100
    temperature: float = 0.8
    top_k: int = 50
    top_p: float = 1.0
    beams: int = 1
    count: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        names = ("new_tokens", "beams", "count")
        wrong = wrong_sizes({name: getattr(self, name) for name in names})
        if self.temperature < 0:
            wrong.append(f"temperature must not be negative: {self.temperature}")
        if self.top_k < 0:
            wrong.append(f"top_k must not be negative: {self.top_k}")
        if not 0 < self.top_p <= 1:
            wrong.append(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if self.beams > 1 and self.count > self.beams:
            wrong.append(f"beam search with {self.beams} beams has at most as many results")
        if self.beams == 1 and self.temperature == 0 and self.count > 1:
            wrong.append("without sampling there is one continuation: count must be 1")
        if wrong:
            raise ConfigError(wrong)

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn by chance."""
        return self.beams == 1 and self.temperature > 0


@torch.no_grad()
def generate(model: LanguageModel, tokenizer: Any, prompt: str, how: Sampling) -> list[str]:
    """Return continuations of a prompt, the prompt included.

    The caller's random state is left as it was.

    Args:
        model: In evaluation mode, on the device to use.
        tokenizer: Of `magneto.data.tokenizer`.
        prompt: Text to continue; an empty one begins a document.
        how: How to choose the next token.

    Raises:
        ValueError: If prompt and continuation exceed the `max_length` of learned positions.
    """
    wrapped: Any = MagnetoForCausalLM(MagnetoConfig.of(model.config, tokenizer.end), model).eval()
    device = next(model.parameters()).device
    start = tokenizer.encode([prompt])[0] if prompt else [tokenizer.end]
    tokens = torch.tensor([start or [tokenizer.end]], device=device)
    chosen: dict[str, Any] = {"num_beams": how.beams, "do_sample": how.samples}
    if how.samples:
        chosen |= {"temperature": how.temperature, "top_k": how.top_k, "top_p": how.top_p}
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(how.seed)
        output: Any = wrapped.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=how.new_tokens,
            num_return_sequences=how.count,
            **chosen,
        )
    return [tokenizer.decode(row) for row in output.tolist()]
