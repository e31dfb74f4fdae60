"""Continue prompts and translate: transformers' `generate`, with our cache-aware decoders under it.

Translations follow fairseq's conventions. It and transformers divide a hypothesis's summed
log-probability by its number of tokens, the end included and the decoder's start not, to the power
of the length penalty. What differs is made equal here:

- at the length limit fairseq adds the end and its log-probability; transformers breaks off without;
- fairseq stops with a sentence when it has as many finished hypotheses as beams
  (`early_stopping=True`); transformers by default goes on while it thinks a better one may come;
- fairseq allows no empty translation and no padding inside one.

Which hypotheses come last in a list of n best can still differ: where more end in one step than
places are left, fairseq takes the first of them, transformers the best of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import torch
from annotated_types import Interval
from torch import Tensor
from torch.nn import functional as F
from transformers import LogitsProcessor, LogitsProcessorList

from magneto.fields import (
    NonNegativeFloat,
    NonNegativeInt,
    Part,
    PositiveInt,
    configuration,
    rule,
)
from magneto.functional.cross_entropy import IGNORED
from magneto.hf.configuration import MagnetoConfig, MagnetoSeq2SeqConfig
from magneto.hf.language import MagnetoForCausalLM, MagnetoForSeq2SeqLM
from magneto.language.models import LanguageModel
from magneto.nn.config import Beams, Width
from magneto.translation.model import TranslationModel

Tokens = list[int]
# Rows of logits that exist at once while hypotheses are scored.
SCORED_ROWS = 2048


@configuration
class Sampling:
    """How to choose the next token."""

    new_tokens: Width = 100
    """At most so many."""
    temperature: NonNegativeFloat = 0.8
    """0 for the most likely token."""
    top_k: NonNegativeInt = 50
    """Choose among so many; 0 for all."""
    top_p: Part = 1.0
    """Choose among the most likely tokens that together have this probability."""
    beams: Beams = 1
    """Beam search with so many beams instead of sampling, if more than 1."""
    count: Annotated[int, Interval(ge=1, le=10_000)] = 1
    """Continuations to return."""
    seed: int = 0
    """Of the sampling."""

    @rule
    def _there_are_so_many(self) -> Iterator[str]:
        if self.beams > 1 and self.count > self.beams:
            yield f"beam search with {self.beams} beams has at most as many results"
        if self.beams == 1 and self.temperature == 0 and self.count > 1:
            yield "without sampling there is one continuation: count must be 1"

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


@configuration
class BeamSearch:
    """How to search for translations; the defaults are the paper's and fairseq's."""

    beams: Beams = 5
    """Hypotheses kept at each step; 1 takes the most likely token each time."""
    length_penalty: float = 1.0
    """Power of the length by which summed log-probabilities are divided."""
    count: PositiveInt = 1
    """Translations to return, best first."""
    longest: Width = 200
    """Tokens of a translation at most, its end not counted (fairseq's --max-len-b)."""
    batch_size: Width = 64
    """Sentences at a time."""

    @rule
    def _there_are_so_many(self) -> Iterator[str]:
        if self.count > self.beams:
            yield f"a search with {self.beams} beams has no {self.count} best"


class FairseqEnds(LogitsProcessor):
    """Allows the end where fairseq does: not first, and nothing else at the limit.

    Args:
        end: Its number.
        padding: A number that is never written, if it is another.
        longest: Tokens before the end at most.
    """

    def __init__(self, end: int, padding: int | None, longest: int) -> None:
        self.end, self.padding, self.longest = end, padding, longest

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Change (rows, vocabulary) log-probabilities after (rows, 1 + tokens) were written."""
        written = input_ids.shape[1] - 1
        ends = scores[:, self.end].clone()
        if written >= self.longest:
            scores = torch.full_like(scores, float("-inf"))
            scores[:, self.end] = ends
        elif written == 0 or self.padding not in (None, self.end):
            scores = scores.clone()
            if self.padding is not None:
                scores[:, self.padding] = float("-inf")
            scores[:, self.end] = ends if written else float("-inf")
        return scores


class Translator:
    """Searches for translations of token sequences, and scores them.

    Args:
        model: Wrapped, in evaluation mode, on the device to use; its configuration names the
            tokens that start, end and pad.
        how: How to search.
    """

    def __init__(self, model: MagnetoForSeq2SeqLM, how: BeamSearch) -> None:
        self.model: Any = model
        self.how = how
        config = model.config
        self.start: int = config.decoder_start_token_id
        self.end: int = config.eos_token_id
        self.padding: int = self.end if config.pad_token_id is None else config.pad_token_id

    @classmethod
    def of(cls, model: TranslationModel, end: int, how: BeamSearch) -> Translator:
        """Wrap a model of ours, whose sentences end, and whose decoder starts, with one token."""
        config: Any = MagnetoSeq2SeqConfig.of(model.config, end)
        return cls(MagnetoForSeq2SeqLM(config, model).eval(), how)

    @torch.inference_mode()
    def search(
        self,
        sources: Sequence[Tokens],
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[list[Tokens]]:
        """Return the best translations of each source, best first, without start and end.

        Args:
            sources: What the encoder reads, tag and end included; none of them empty.
            progress: Told how many sources are done.
        """
        found: list[list[Tokens]] = [[] for _ in sources]
        done = 0
        for numbers in self._batches(sources):
            rows = self._generate([sources[number] for number in numbers])
            for place, number in enumerate(numbers):
                mine = rows[place * self.how.count : (place + 1) * self.how.count]
                found[number] = [self._inside(row) for row in mine]
            done += len(numbers)
            progress(done)
        return found

    def _generate(self, sources: list[Tokens]) -> list[Tokens]:
        how = self.how
        tokens, mask = self._padded(sources)
        padding = None if self.padding == self.end else self.padding
        beams: dict[str, Any] = {"num_beams": 1}
        if how.beams > 1:
            beams = {"num_beams": how.beams, "length_penalty": how.length_penalty,
                     "early_stopping": True, "num_return_sequences": how.count}  # fmt: skip
        written = self.model.generate(
            tokens,
            attention_mask=mask,
            do_sample=False,
            max_length=how.longest + 2,  # the start and the end too
            logits_processor=LogitsProcessorList([FairseqEnds(self.end, padding, how.longest)]),
            **beams,
        )
        return written.tolist()

    @torch.inference_mode()
    def score(
        self, sources: Sequence[Tokens], translations: Sequence[Sequence[Tokens]]
    ) -> list[list[float]]:
        """Return the score of each translation of each source, as the search ranks them.

        It is the summed log-probability, of the end too, over the length to the power of the
        penalty; 0 is best.
        """
        found: list[list[float]] = [[0.0] * len(some) for some in translations]
        pairs = [(n, k) for n, some in enumerate(translations) for k in range(len(some))]
        for chosen in self._batches([sources[number] for number, _ in pairs]):
            rows = [pairs[place] for place in chosen]
            given = [[*translations[number][k], self.end] for number, k in rows]
            sums = self._log_probabilities([sources[number] for number, _ in rows], given)
            for (number, k), total, tokens in zip(rows, sums, given, strict=True):
                found[number][k] = total / len(tokens) ** self.how.length_penalty
        return found

    def _log_probabilities(self, sources: list[Tokens], given: list[Tokens]) -> list[float]:
        core: TranslationModel = self.model.core
        tokens, source_mask = self._padded(sources)
        answers, real = self._padded(given)
        target = F.pad(answers[:, :-1], (1, 0), value=self.start)
        decoder = core.transformer.decoder
        memory = core.encode(tokens, source_mask)
        features = decoder(core.embedding(target), None, memory, source_mask)
        answers = answers.masked_fill(~real, IGNORED)
        parts = zip(
            features.flatten(0, 1).split(SCORED_ROWS),
            answers.flatten().split(SCORED_ROWS),
            strict=True,
        )
        losses = [
            F.cross_entropy(
                core.project(rows).float(), wanted, ignore_index=IGNORED, reduction="none"
            )
            for rows, wanted in parts
        ]
        return (-torch.cat(losses).view_as(answers).double().sum(1)).tolist()

    def _batches(self, sources: Sequence[Tokens]) -> list[list[int]]:
        """Return the sources' numbers, in batches of like length, the longest first."""
        order = sorted(range(len(sources)), key=lambda number: -len(sources[number]))
        size = self.how.batch_size
        return [order[start : start + size] for start in range(0, len(order), size)]

    def _padded(self, rows: list[Tokens]) -> tuple[Tensor, Tensor]:
        """Return rows as (rows, longest) tokens, and where they are real."""
        device = next(self.model.parameters()).device
        lengths = torch.tensor([len(row) for row in rows])
        longest = int(lengths.max())
        tokens = torch.tensor([row + [self.padding] * (longest - len(row)) for row in rows])
        mask = torch.arange(longest) < lengths[:, None]
        return tokens.to(device), mask.to(device)

    def _inside(self, row: Tokens) -> Tokens:
        """Cut a row's start, and its end with what follows."""
        body = row[1:]
        return body[: body.index(self.end)] if self.end in body else body
