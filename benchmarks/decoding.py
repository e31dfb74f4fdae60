"""Time of beam search: transformers' Marian, and the same weights in Magneto. `make gpu` uses this.

Both use transformers' `generate` with the same settings and batches of like length. The weights are
random and never end a sentence, so each translation has the maximum number of tokens. All
hypotheses are checked to be equal. Contenders take turns in a new random order each round.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from benchmarks.bench_cases import Case
from benchmarks.turns import timed
from magneto import hf

END, PADDING = 0, 1
# Beams, and sentences of a turn at least.
BEAMS, LEAST = 5, 4


@dataclass
class Entry:
    """A contender at one batch size, with its seconds per turn."""

    contender: str
    batch: int
    translator: Any
    sources: list[list[int]]
    seconds: list[float] = field(default_factory=list)
    found: Any = None

    def turn(self) -> None:
        """Translate everything once."""
        self.found = self.translator.search(self.sources)

    def row(self) -> dict[str, Any]:
        """Return the median of sentences per second."""
        count = len(self.sources)
        return {
            "contender": self.contender,
            "batch": self.batch,
            "turns": len(self.seconds),
            "sentences_per_turn": count,
            "sentences_per_second": count / median(self.seconds),
        }


def build(case: Case, device: torch.device) -> dict[str, Any]:
    """Build transformers' Marian with random weights, and Magneto's model with the same weights."""
    from transformers import MarianConfig, MarianMTModel

    half = case.layers // 2
    config = MarianConfig(
        d_model=case.width, encoder_layers=half, decoder_layers=half,
        encoder_attention_heads=case.heads, decoder_attention_heads=case.heads,
        encoder_ffn_dim=case.ffn_width, decoder_ffn_dim=case.ffn_width,
        vocab_size=case.vocab_size, max_position_embeddings=512, scale_embedding=True,
        activation_function="relu", bos_token_id=END, eos_token_id=END, pad_token_id=PADDING,
        decoder_start_token_id=PADDING, forced_eos_token_id=None, attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(1)
    theirs: Any = MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "embed_positions" not in name and parameter.ndim > 1:
                # Larger embeddings give logits with clear preferences.
                size = 4 if "shared" in name else 1
                parameter.normal_(std=size * parameter.shape[1] ** -0.5)
    core: Any = hf.load(theirs)
    names = hf.MagnetoSeq2SeqConfig.of(
        core.config, END, pad_token_id=PADDING, decoder_start_token_id=PADDING
    )
    ours = hf.MagnetoForSeq2SeqLM(names, core).eval()
    return {"transformers Marian": theirs.to(device), "magneto": ours.to(device)}


def sentences(count: int, vocab_size: int) -> list[list[int]]:
    """Make sources of 8 to 40 tokens."""
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(8, 41, (count,), generator=generator).tolist()
    draw = (torch.randint(2, vocab_size, (n - 1,), generator=generator) for n in lengths)
    return [[*tokens.tolist(), END] for tokens in draw]


def check(entries: list[Entry]) -> None:
    """Compare the hypotheses of the contenders.

    Rounding may swap two hypotheses of equal score. Where the hypotheses differ, the scores of the
    same rank are compared, both from the same model.

    Raises:
        RuntimeError: If a score differs by more than rounding.
    """
    for entry in entries:
        first = next(other for other in entries if other.batch == entry.batch)
        if entry.found != first.found:
            scorer = next(e for e in (entry, first) if e.contender == "magneto").translator
            scores = [torch.tensor(scorer.score(e.sources, e.found)) for e in (entry, first)]
            largest = (scores[0] - scores[1]).abs().max().item()
            if largest > 1e-5:
                raise RuntimeError(f"hypotheses differ in score by {largest:.2e}")


def beam_search(
    case: Case, device: torch.device, batches: Sequence[int], tokens: int = 30, rounds: int = 2
) -> list[dict[str, Any]]:
    """Time beam search by contender and batch size, in rounds after one warm-up round.

    Args:
        case: Sizes of the models.
        device: Device of the models.
        batches: Batch sizes in sentences.
        tokens: Tokens of each translation.
        rounds: Number of rounds; each contender translates all sentences once a round.

    Raises:
        RuntimeError: If the contenders' hypotheses differ.
    """
    entries = []
    for name, model in build(case, device).items():
        for batch in batches:
            how = hf.BeamSearch(beams=BEAMS, count=BEAMS, longest=tokens, batch_size=batch)
            sources = sentences(max(batch, LEAST), case.vocab_size)
            entries.append(Entry(name, batch, hf.Translator(model, how), sources))
    order = random.Random(1)
    for number in range(-1, rounds):
        for entry in order.sample(entries, len(entries)):
            seconds, _ = timed(entry.turn, device)
            if number >= 0:
                entry.seconds.append(seconds)
        if number < 0:
            check(entries)
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    rows = [entry.row() for entry in entries]
    return sorted(rows, key=lambda r: (r["batch"], r["contender"] == "magneto"))
