"""Time of beam search: transformers' Marian and BART, and the same weights in Magneto.

Both use transformers' `generate` with the same settings and batches of like length. The weights are
random and never end a sentence, so each translation has the maximum number of tokens. All
hypotheses are checked to be equal. Contenders take turns in a new random order each round.
Processor time is recorded too, because other work on the machine affects it less than the clock.
`make gpu` uses this.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.training_step import wait
from magneto import hf

END, PADDING = 0, 1
# Beams, and sentences of a turn at least.
BEAMS, LEAST = 5, 4


@dataclass(frozen=True)
class Shape:
    """Sizes of the models."""

    width: int
    layers: int
    heads: int
    ffn_width: int
    vocab_size: int


SHAPES = {
    "tiny": Shape(32, 2, 4, 48, 97),
    "gpu": Shape(512, 6, 8, 2048, 32768),
}
CLASSES = {"Marian": "MarianMTModel", "BART": "BartForConditionalGeneration"}


@dataclass
class Entry:
    """A contender at one batch size, with its seconds per turn."""

    model: str
    contender: str
    batch: int
    translator: Any
    sources: list[list[int]]
    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    found: Any = None

    def turn(self, device: torch.device) -> None:
        """Translate everything once."""
        wait(device)
        wall, processor = time.perf_counter(), time.process_time()
        self.found = self.translator.search(self.sources)
        wait(device)
        self.wall.append(time.perf_counter() - wall)
        self.processor.append(time.process_time() - processor)

    def row(self) -> dict[str, Any]:
        """Return sentences per second with quartiles, and processor time."""
        count = len(self.sources)
        slow, middle, fast = quartiles([count / seconds for seconds in self.wall])
        low, processor, high = quartiles([1e3 * s / count for s in self.processor])
        return {
            "model": self.model,
            "contender": self.contender,
            "batch": self.batch,
            "turns": len(self.wall),
            "sentences_per_turn": count,
            "sentences_per_second": middle,
            "quartiles": [slow, fast],
            "processor_ms_per_sentence": processor,
            "processor_quartiles": [low, high],
        }


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Return lower quartile, median and upper quartile."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def build(kind: str, shape: Shape, device: torch.device) -> dict[str, Any]:
    """Build a transformers model with random weights, and Magneto's with the same weights."""
    import transformers

    config = getattr(transformers, f"{kind.title()}Config")(
        d_model=shape.width, encoder_layers=shape.layers, decoder_layers=shape.layers,
        encoder_attention_heads=shape.heads, decoder_attention_heads=shape.heads,
        encoder_ffn_dim=shape.ffn_width, decoder_ffn_dim=shape.ffn_width,
        vocab_size=shape.vocab_size, max_position_embeddings=512, scale_embedding=True,
        activation_function="relu", bos_token_id=END, eos_token_id=END, pad_token_id=PADDING,
        decoder_start_token_id=PADDING, forced_eos_token_id=None, attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(1)
    theirs: Any = getattr(transformers, CLASSES[kind])(config).eval()
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
    return {f"transformers {kind}": theirs.to(device), "magneto": ours.to(device)}


def sentences(count: int, vocab_size: int) -> list[list[int]]:
    """Make sources of 8 to 40 tokens."""
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(8, 41, (count,), generator=generator).tolist()
    draw = (torch.randint(2, vocab_size, (n - 1,), generator=generator) for n in lengths)
    return [[*tokens.tolist(), END] for tokens in draw]


def check(entries: list[Entry]) -> dict[str, Any]:
    """Compare the hypotheses of the contenders.

    Rounding may swap two hypotheses of equal score. Scores of the same rank are therefore
    compared too, both from the same model.

    Returns:
        Number of hypotheses, number of equal ones, and largest difference in score.

    Raises:
        RuntimeError: If a score differs by more than rounding.
    """
    compared = same = 0
    largest = 0.0
    for entry in entries:
        first = next(e for e in entries if (e.model, e.batch) == (entry.model, entry.batch))
        if entry is first:
            continue
        for mine, theirs in zip(entry.found, first.found, strict=True):
            compared += len(mine)
            same += sum(a == b for a, b in zip(mine, theirs, strict=True))
        if entry.found != first.found:
            scorer = next(e for e in (entry, first) if e.contender == "magneto").translator
            found = [scorer.score(entry.sources, each.found) for each in (entry, first)]
            difference = (torch.tensor(found[0]) - torch.tensor(found[1])).abs().max().item()
            largest = max(largest, difference)
    if largest > 1e-5:
        raise RuntimeError(f"hypotheses differ in score by {largest:.2e}")
    return {"compared": compared, "same": same, "largest_score_difference": largest}


def beam_search(
    shape: str, device: torch.device, kinds: Sequence[str], batches: Sequence[int],
    tokens: int = 30, rounds: int = 2,
) -> list[dict[str, Any]]:  # fmt: skip
    """Time beam search by contender and batch size, in rounds after one warm-up round.

    Args:
        shape: One of `SHAPES`.
        device: Device of the models.
        kinds: Keys of `CLASSES`.
        batches: Batch sizes in sentences.
        tokens: Tokens of each translation.
        rounds: Number of rounds; each contender translates all sentences once a round.

    Raises:
        RuntimeError: If the contenders' hypotheses differ.
    """
    entries, sizes = [], SHAPES[shape]
    for kind in kinds:
        for name, model in build(kind, sizes, device).items():
            for batch in batches:
                how = hf.BeamSearch(beams=BEAMS, count=BEAMS, longest=tokens, batch_size=batch)
                sources = sentences(max(batch, LEAST), sizes.vocab_size)
                entries.append(Entry(kind, name, batch, hf.Translator(model, how), sources))
    order = random.Random(1)
    for number in range(-1, rounds):
        for entry in order.sample(entries, len(entries)):
            entry.turn(device)
        if number < 0:
            check(entries)
            for entry in entries:
                entry.wall.clear()
                entry.processor.clear()
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    rows = [entry.row() for entry in entries]
    return sorted(rows, key=lambda r: (r["model"], r["batch"], r["contender"] == "magneto"))
