"""Time a speech recognition run's decoding: greedily and with beams, one utterance and 32 at once.

    magneto train transducer/tiny --out runs/digits
    python -m benchmarks.transducer_decoding runs/digits

The run's validation utterances are transcribed by each search, encoder included, in interleaved
rounds. The real-time factor is the seconds spent over the seconds heard. Results go to
benchmarks/results/transducer-decoding-DEVICE.json and .md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from magneto.analysis.report.provenance import without_places
from magneto.files import plain, write_json, write_text
from magneto.runs import load_run
from magneto.speech.beam_search import AlignmentLengthBeamSearch, ModifiedBeamSearch
from magneto.speech.decoding import GreedySearch, Search
from magneto.speech.scores import word_errors
from magneto.training.environment import environment

RESULTS = Path(__file__).parent / "results"
# Features are one every 10 ms.
SECONDS_PER_FRAME = 0.01
Features = tuple[torch.Tensor, torch.Tensor]


def main(words: Sequence[str] | None = None) -> dict[str, Any]:
    """Take turns, write medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="a run of a transducer")
    parser.add_argument("--beams", type=int, default=4, help="width of the beams (4)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--utterances", type=int, default=32, help="that are heard (32)")
    parser.add_argument("--rounds", type=int, default=7, help="each search in each (7)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args(words)
    opened: Any = load_run(given.run, "best", {})
    device = next(opened.model.parameters()).device
    rows = measure(opened, given, device)
    result = {
        "recipe": opened.recipe.to_mapping(), "beams": given.beams, "rounds": given.rounds,
        "threads": torch.get_num_threads(), "load": os.getloadavg(), "environment": environment(),
        "rows": rows,
    }  # fmt: skip
    place = given.out / f"transducer-decoding-{device.type}"
    write_json(place.with_suffix(".json"), plain(without_places(result)))
    write_text(place.with_suffix(".md"), markdown(result))
    return result


def measure(opened: Any, given: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    """Return a row for each search and size of a batch."""
    features, texts = utterances(opened.task, given.utterances, device)
    searches: dict[str, Search] = {
        "greedy": GreedySearch(),
        f"modified, beam {given.beams}": ModifiedBeamSearch(width=given.beams),
        f"alignment-length, beam {given.beams}": AlignmentLengthBeamSearch(width=given.beams),
    }
    turns = {(name, size): joined(features, size) for name in searches for size in given.batches}
    spent: dict[tuple[str, int], list[tuple[float, float]]] = {key: [] for key in turns}
    said: dict[tuple[str, int], list[str]] = {}
    for number in range(given.rounds + 1):
        for (name, size), batches in turns.items():
            start = time.perf_counter(), time.process_time()
            said[name, size] = transcripts(opened, searches[name], batches)
            took = time.perf_counter() - start[0], time.process_time() - start[1]
            if number:  # the first round loads and allocates
                spent[name, size].append(took)
    heard = SECONDS_PER_FRAME * sum(len(one) for one in features)
    base = {size: statistics.median(p for _, p in spent["greedy", size]) for size in given.batches}
    rows = []
    for (name, size), took in spent.items():
        wall, processor = ([pair[i] / heard for pair in took] for i in (0, 1))
        low, middle, high = statistics.quantiles(wall, n=4, method="inclusive")
        rows.append({
            "search": name, "batch": size, "real_time_factor": middle, "quartiles": [low, high],
            "processor_real_time_factor": statistics.median(processor),
            "of_greedy": statistics.median(processor) * heard / base[size],
            "wer": word_errors(texts, said[name, size]).rate, "seconds_heard": heard,
        })  # fmt: skip
    return rows


def utterances(task: Any, count: int, device: torch.device) -> tuple[list[torch.Tensor], list[str]]:
    """Return the features of the first validation utterances, without padding, and their texts."""
    features: list[torch.Tensor] = []
    texts: list[str] = []
    for batch in task.validation_batches():
        for row, length in enumerate(batch.feature_lengths.tolist()):
            features.append(batch.features[row, :length].to(device))
            texts.append(batch.texts[row])
        if len(features) >= count:
            break
    return features[:count], texts[:count]


def joined(features: list[torch.Tensor], size: int) -> list[Features]:
    """Return utterances `size` at a time, padded, with their lengths."""
    batches = []
    for start in range(0, len(features), size):
        some = features[start : start + size]
        lengths = torch.tensor([len(one) for one in some], device=some[0].device)
        batches.append((torch.nn.utils.rnn.pad_sequence(some, batch_first=True), lengths))
    return batches


@torch.no_grad()
def transcripts(opened: Any, search: Search, batches: list[Features]) -> list[str]:
    """Return the best transcript of each utterance."""
    found = []
    for features, lengths in batches:
        encoded = opened.model.encode(features, lengths)
        found += [best[0].labels for best in search(opened.model, *encoded)]
    return [opened.task.vocabulary.decode(labels) for labels in found]


def markdown(result: Mapping[str, Any]) -> str:
    """Return the result as a page with a table."""
    rows = result["rows"]
    lines = [
        "# Decoding of a transducer",
        "",
        f"{rows[0]['seconds_heard']:.0f} seconds of speech, {result['threads']} thread(s), load "
        f"{result['load'][0]:.1f}; medians of {result['rounds']} interleaved rounds, with quartiles"
        "; encoder included. The last columns are of the processor time.",
        "",
        "| search | batch | real-time factor | quartiles | of greedy | word error rate |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {r['search']} | {r['batch']} | {r['real_time_factor']:.4f} | "
        f"{r['quartiles'][0]:.4f} to {r['quartiles'][1]:.4f} | {r['of_greedy']:.2f} | "
        f"{r['wer']:.3f} |"
        for r in rows
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
