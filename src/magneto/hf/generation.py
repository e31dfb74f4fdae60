"""Text generation and beam search with the method `generate` of Hugging Face's transformers.

Beam search for translation follows these rules of fairseq. A hypothesis at the length limit gets
the end token, and the score includes the log-probability of the end token. For each sentence, the
search ends when the number of finished hypotheses equals the number of beams. A translation is not
empty and has no padding token. The last translations of an n-best list can differ from fairseq's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import torch
from annotated_types import Interval
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import LogitsProcessor, LogitsProcessorList

from magneto.fields import (
    NonNegativeFloat,
    NonNegativeInt,
    Part,
    PositiveInt,
    configuration,
    rule,
)
from magneto.functional.cross_entropy import IGNORED, target_log_probabilities
from magneto.hf.language import MagnetoForCausalLM, MagnetoForSeq2SeqLM
from magneto.hf.wrapper import MagnetoConfig, MagnetoSeq2SeqConfig
from magneto.language.models import LanguageModel
from magneto.nn.config import BEAMS, Beams, Width
from magneto.translation.model import TranslationModel

Tokens = list[int]


@configuration
class Sampling:
    """Settings of text generation."""

    new_tokens: Width = 100
    """Maximum number of new tokens."""
    temperature: NonNegativeFloat = 0.8
    """Sampling temperature, 0 or at least 1e-6. With 0, the most probable token is selected."""
    top_k: NonNegativeInt = 50
    """Number of most probable tokens to sample from. With `top_k` 0, all tokens can be sampled."""
    top_p: Part = 1.0
    """Total probability of the most probable tokens to sample from (nucleus sampling)."""
    beams: Beams = 1
    """Number of beams. With 2 or more beams, beam search replaces sampling."""
    count: Annotated[int, Interval(ge=1, le=10_000)] = 1
    """Number of returned continuations."""
    seed: int = 0
    """Seed of the sampling."""

    @rule
    def _count_is_possible(self) -> Iterator[str]:
        if self.beams > 1 and self.count > self.beams:
            yield f"count ({self.count}) must be at most beams ({self.beams})"
        if 0 < self.temperature < 1e-6:  # logits divided by it could overflow
            yield "temperature must be 0 (greedy) or at least 1e-6"
        if self.beams == 1 and self.temperature == 0 and self.count > 1:
            yield "count must be 1 without sampling (temperature 0)"

    @property
    def samples(self) -> bool:
        return self.beams == 1 and self.temperature > 0


@torch.no_grad()
def generate(model: LanguageModel, tokenizer: Any, prompt: str, settings: Sampling) -> list[str]:
    """Return continuations of a prompt; each text begins with the prompt.

    An empty prompt begins a new document. The global random state does not change.

    Raises:
        ValueError: If prompt and continuation can be longer than the table of learned positions.
    """
    wrapped: Any = MagnetoForCausalLM(MagnetoConfig.of(model.config, tokenizer.end), model).eval()
    device = next(model.parameters()).device
    start = tokenizer.encode([prompt])[0] if prompt else [tokenizer.end]
    tokens = torch.tensor([start or [tokenizer.end]], device=device)
    # The last new token is never read.
    room, config = model.config.max_length + 1 - tokens.shape[1], model.config
    if config.positions == "learned" and settings.new_tokens > room:
        advice = f"Lower new_tokens to at most {room}" if room > 0 else "Shorten the prompt"
        raise ValueError(f"the prompt's {tokens.shape[1]} tokens and {settings.new_tokens} new "
                         f"tokens exceed max_length ({config.max_length}). {advice}.")  # fmt: skip
    options: dict[str, Any] = {"num_beams": settings.beams, "do_sample": settings.samples}
    if settings.samples:
        options |= {
            "temperature": settings.temperature,
            "top_k": settings.top_k,
            "top_p": settings.top_p,
        }
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(settings.seed)
        output: Any = wrapped.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=settings.new_tokens,
            num_return_sequences=settings.count,
            **options,
        )
    return [tokenizer.decode(row) for row in output.tolist()]


@configuration
class BeamSearch:
    """Settings of beam search for translation.

    The defaults are those of the paper and of fairseq.
    """

    beams: Beams = BEAMS
    """Number of beams. A search with 1 beam is greedy."""
    length_penalty: float = 1.0
    """Length penalty p. The score is the log-probability divided by length ** p."""
    count: PositiveInt = 1
    """Number of returned translations, best first."""
    longest: Width = 200
    """Maximum number of tokens of a translation, without the end token."""
    batch_size: Width = 64
    """Sentences per batch."""

    @rule
    def _count_is_possible(self) -> Iterator[str]:
        if self.count > self.beams:
            yield f"count ({self.count}) must be at most beams ({self.beams})"


class EndAtLimit(LogitsProcessor):
    """Logits processor that allows only the end token after `longest` tokens.

    Unlike transformers' `forced_eos_token_id`, it keeps the log-probability of the end token.
    """

    def __init__(self, end: int, longest: int) -> None:
        self.end, self.longest = end, longest

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores of the next token, (rows, vocabulary).

        `input_ids` are (rows, 1 + generated tokens).
        """
        if input_ids.shape[1] <= self.longest:
            return scores
        only = torch.full_like(scores, float("-inf"))
        only[:, self.end] = scores[:, self.end]
        return only


class Translator:
    """Beam search for translations, and scores of translations.

    The model must be in evaluation mode. The search runs on the model's device. The model's
    configuration must contain the start and end tokens.
    """

    def __init__(self, model: MagnetoForSeq2SeqLM, settings: BeamSearch) -> None:
        self.model: Any = model
        self.settings = settings
        config = model.config
        self.start: int = config.decoder_start_token_id
        self.end: int = config.eos_token_id
        self.padding: int = self.end if config.pad_token_id is None else config.pad_token_id

    @classmethod
    def of(cls, model: TranslationModel, end: int, settings: BeamSearch) -> Translator:
        """Wrap a Magneto model whose decoder starts with the end token."""
        config: Any = MagnetoSeq2SeqConfig.of(model.config, end)
        return cls(MagnetoForSeq2SeqLM(config, model).eval(), settings)

    @torch.inference_mode()
    def search(
        self,
        sources: Sequence[Tokens],
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[list[Tokens]]:
        """Return the best translations of each source, best first.

        Sources include the language tag and the end token. Translations include neither a start
        token nor an end token. `progress` is called with the number of translated sources.
        """
        found: list[list[Tokens]] = [[] for _ in sources]
        done = 0
        for numbers in self._batches(sources):
            rows = self._generate([sources[number] for number in numbers])
            for place, number in enumerate(numbers):
                mine = rows[place * self.settings.count : (place + 1) * self.settings.count]
                found[number] = [self._inside(row) for row in mine]
            done += len(numbers)
            progress(done)
        return found

    def _generate(self, sources: list[Tokens]) -> list[Tokens]:
        settings = self.settings
        tokens, mask = self._padded(sources)
        beams: dict[str, Any] = {"num_beams": 1}
        if settings.beams > 1:
            beams = {"num_beams": settings.beams, "length_penalty": settings.length_penalty,
                     "early_stopping": True, "num_return_sequences": settings.count}  # fmt: skip
        written = self.model.generate(
            tokens,
            attention_mask=mask,
            do_sample=False,
            max_length=settings.longest + 2,  # with start and end token
            begin_suppress_tokens=[self.end],
            suppress_tokens=None if self.padding == self.end else [self.padding],
            logits_processor=LogitsProcessorList([EndAtLimit(self.end, settings.longest)]),
            **beams,
        )
        return written.tolist()

    @torch.inference_mode()
    def score(
        self, sources: Sequence[Tokens], translations: Sequence[Sequence[Tokens]]
    ) -> list[list[float]]:
        """Return the score of each translation of each source.

        The score is the log-probability divided by length ** length_penalty. Log-probability and
        length include the end token.
        """
        found: list[list[float]] = [[0.0] * len(some) for some in translations]
        pairs = [(n, k) for n, some in enumerate(translations) for k in range(len(some))]
        for chosen in self._batches([sources[number] for number, _ in pairs]):
            rows = [pairs[place] for place in chosen]
            given = [[*translations[number][k], self.end] for number, k in rows]
            sums = self._log_probabilities([sources[number] for number, _ in rows], given)
            for (number, k), total, tokens in zip(rows, sums, given, strict=True):
                found[number][k] = total / len(tokens) ** self.settings.length_penalty
        return found

    def _log_probabilities(self, sources: list[Tokens], given: list[Tokens]) -> list[float]:
        core: TranslationModel = self.model.core
        tokens, source_mask = self._padded(sources)
        answers, real = self._padded(given)
        target = F.pad(answers[:, :-1], (1, 0), value=self.start)
        decoder = core.transformer.decoder
        memory = core.encode(tokens, source_mask)
        features = decoder(core.embedding(target), None, memory, source_mask).flatten(0, 1)
        wanted = answers.masked_fill(~real, IGNORED).flatten()
        found = target_log_probabilities(core.project, features, wanted)
        return found.view_as(answers).sum(1).tolist()

    def _batches(self, sources: Sequence[Tokens]) -> list[list[int]]:
        order = sorted(range(len(sources)), key=lambda number: -len(sources[number]))
        size = self.settings.batch_size
        return [order[start : start + size] for start in range(0, len(order), size)]

    def _padded(self, rows: list[Tokens]) -> tuple[Tensor, Tensor]:
        tokens = pad_sequence([torch.tensor(row) for row in rows], True, self.padding)
        mask = pad_sequence([torch.ones(len(row), dtype=torch.bool) for row in rows], True)
        return tokens.to(self.model.device), mask.to(self.model.device)

    def _inside(self, row: Tokens) -> Tokens:
        body = row[1:]
        return body[: body.index(self.end)] if self.end in body else body
