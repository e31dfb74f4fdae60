r"""Time beam search: transformers' Marian and BART, and the same weights in our encoder-decoder.

    python benchmarks/decoding.py
    python benchmarks/decoding.py --shape gpu --device cuda

Both are searched by transformers' `generate` with the same settings, batches of like length, and
weights drawn at random, which end nowhere, so that each translation has as many tokens as are
allowed. Every hypothesis is checked to be the same. Contenders take turns, a new random order each
round. Beside the wall clock stands the processor time, which other work on the machine moves less.
Results go to benchmarks/results/NAME.json and .md.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.training_step import ROOT, machine, wait, write_result
from magneto import hf

END, PADDING = 0, 1


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
    "cpu": Shape(256, 6, 4, 1024, 8192),
    "gpu": Shape(512, 6, 8, 2048, 32768),
}
CLASSES = {"Marian": "MarianMTModel", "BART": "BartForConditionalGeneration"}


@dataclass
class Entry:
    """A contender at one batch size, and what was measured of it: seconds per turn."""

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
        """Return the numbers: sentences per second, with quartiles, and processor time."""
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
    """Return lower quartile, median, upper quartile."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def build(kind: str, shape: Shape, device: torch.device) -> dict[str, Any]:
    """Build a transformers model with random weights, and ours with the same."""
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
                # Larger embeddings give logits that prefer some tokens.
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


def prepare(args: argparse.Namespace, device: torch.device) -> list[Entry]:
    """Return all that is timed."""
    entries = []
    shape = SHAPES[args.shape]
    for kind in args.models:
        for name, model in build(kind, shape, device).items():
            for batch in args.batches:
                how = hf.BeamSearch(beams=args.beams, count=args.beams, longest=args.tokens,
                                    batch_size=batch)  # fmt: skip
                sources = sentences(max(batch, args.least), shape.vocab_size)
                entries.append(Entry(kind, name, batch, hf.Translator(model, how), sources))
    return entries


def check(entries: list[Entry]) -> dict[str, Any]:
    """Compare what the contenders found.

    Two hypotheses of equal score may change places by rounding. So scores of the same rank are
    compared too, both taken from the same model.

    Returns:
        How many hypotheses were compared, how many are the same, largest difference in score.

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


def agreement(result: dict[str, Any]) -> str:
    """Say how many hypotheses are the same."""
    compared, same = result["compared"], result["same"]
    if same == compared:
        return f"All {compared} hypotheses compared are the same."
    apart = result["largest_score_difference"]
    return f"Of {compared} hypotheses {same} are the same; scores differ by {apart:.1e} at most."


def markdown(result: dict[str, Any]) -> str:
    """Return the result as a page with a table."""
    where, rows = result["machine"], result["rows"]
    versions = ", ".join(f"{k} {where['packages'][k]}" for k in ("torch", "transformers"))
    lines = [
        f"# Beam search: {result['name']}",
        "",
        f"{result['shape']}; {result['beams']} beams, {result['tokens']} tokens and the end; fp32; "
        f"{where['accelerator'] or where['processor']}, {where['cores']} cores, "
        f"{where['threads']} threads; Python {where['python']}, {versions}; "
        f"commit {result['commit']}; {where['date']}.",
        "",
        f"Medians of {rows[0]['turns']} interleaved turns, with quartiles. {agreement(result)}",
        "",
        "| model | contender | batch | sentences/s | quartiles | ratio | processor ms a sentence | "
        "quartiles | ratio |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for r in rows:
        base = next(b for b in rows if (b["model"], b["batch"]) == (r["model"], r["batch"]))
        speed = r["sentences_per_second"] / base["sentences_per_second"]
        work = r["processor_ms_per_sentence"] / base["processor_ms_per_sentence"]
        low, high = r["quartiles"]
        least, most = r["processor_quartiles"]
        lines.append(
            f"| {r['model']} | {r['contender']} | {r['batch']} | {r['sentences_per_second']:.2f} | "
            f"{low:.2f} to {high:.2f} | {speed:.3f} | {r['processor_ms_per_sentence']:.1f} | "
            f"{least:.1f} to {most:.1f} | {work:.3f} |"
        )
    return "\n".join(lines) + "\n"


def arguments(words: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--shape", choices=SHAPES, default="cpu")
    add("--models", nargs="+", choices=CLASSES, default=list(CLASSES))
    add("--batches", nargs="+", type=int, default=[1, 64])
    add("--beams", type=int, default=5)
    add("--tokens", type=int, default=30, help="of each translation")
    add("--least", type=int, default=4, help="sentences in a turn at least")
    add("--rounds", type=int, default=10)
    add("--device", default="cpu")
    add("--threads", type=int, help="CPU threads of torch")
    add("--commit", help="of the source, where git cannot tell")
    add("--out", type=Path, default=ROOT / "benchmarks" / "results")
    add("--name", help="of the result; by default from shape and device")
    args = parser.parse_args(words)
    args.name = args.name or f"decoding-{args.shape}-{args.device}"
    return args


def main(words: list[str] | None = None) -> dict[str, Any]:
    """Run the benchmark; return and write the result."""
    args = arguments(words)
    if args.threads:
        torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    entries = prepare(args, device)
    order = random.Random(1)
    found = {}
    for number in range(-1, args.rounds):  # the first round does not count
        for entry in order.sample(entries, len(entries)):
            entry.turn(device)
        if number < 0:
            found = check(entries)
            for entry in entries:
                entry.wall.clear()
                entry.processor.clear()
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
    where = machine(device)
    result = {
        "name": args.name,
        "shape": ", ".join(f"{k} {v}" for k, v in asdict(SHAPES[args.shape]).items()),
        "beams": args.beams,
        "tokens": args.tokens,
        **found,
        "commit": args.commit or where["commit"] or "unknown",
        "machine": where,
        "rows": [entry.row() for entry in entries],
    }
    result["rows"].sort(key=lambda r: (r["model"], r["batch"], r["contender"] == "magneto"))
    write_result(result, markdown(result), args.out)
    return result


if __name__ == "__main__":
    main()
