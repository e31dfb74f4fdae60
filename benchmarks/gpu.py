r"""All GPU measurements in one command, within a few minutes.

    python -m benchmarks.gpu
    python -m benchmarks.gpu --minutes 4 --only rate step-gpu
    python -m benchmarks.gpu --device cpu --scale tiny

Sections run in the order of their importance. Each has a share of the remaining time, omits what
does not fit, and reports it. benchmarks/results/gpu-DEVICE.json and .md are rewritten after each
section, so an interrupted run keeps its results.
"""

from __future__ import annotations

import argparse
import gc
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks import gpu_models, gpu_steps
from benchmarks.bench_cases import Case
from benchmarks.contenders import CASES
from benchmarks.training_step import ROOT, machine, write_result

Found = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """Sizes of all measurements.

    Attributes:
        steps: Names of `contenders.CASES` for the training step.
        backend: Backend of torch.compile.
        compiled: Largest number of compiled contenders.
        rounds: Largest number of interleaved rounds of timed steps.
        matrix: Rows of the matrices whose product is timed.
        depths: Numbers of layers for the step's time against depth.
        deep: The other sizes there.
        model: Fields of the recipe of the trained language model.
        turns: Largest number of turns of ten steps for each model there.
        translated: Sizes of the translation models for beam search.
        written: Sizes of the language model for generation.
        tokens: Number of generated tokens.
    """

    steps: tuple[str, ...]
    backend: str
    compiled: int
    rounds: int
    matrix: int
    depths: tuple[int, ...]
    deep: Case
    model: Case
    turns: int
    translated: Case
    written: Case
    tokens: int


SCALES = {
    "tiny": Scale(
        steps=("tiny",),
        backend="eager",
        compiled=1,
        rounds=2,
        matrix=64,
        depths=(1, 2),
        deep=Case("causal-lm", 2, 32, 2, 2, 16, 64),
        model=Case("causal-lm", 1, 32, 2, 2, 16, 257),
        turns=2,
        translated=Case("translation", 2, 32, 4, 1, 40, 97),
        written=CASES["tiny"],
        tokens=2,
    ),
    "full": Scale(
        steps=("gpu", "gpu-deep"),
        backend="inductor",
        compiled=8,
        rounds=20,
        matrix=8192,
        depths=(6, 24, 96, 384, 1000),
        deep=Case("causal-lm", 6, 128, 2, 4, 256, 8192),
        model=Case("causal-lm", 24, 1024, 16, 8, 1024, 257),
        turns=10**6,
        translated=Case("translation", 12, 512, 8, 1, 40, 32768),
        written=CASES["gpu"],
        tokens=128,
    ),
}


@dataclass
class Bench:
    """Device, sizes and time of a section.

    Attributes:
        device: Device of the measurement.
        scale: Sizes.
        until: End of the section by `time.monotonic`.
        found: Results of earlier sections by name; "rate" has the rates of products.
        left_out: Lines about what did not fit into this section.
    """

    device: torch.device
    scale: Scale
    until: float = 0.0
    found: dict[str, Found] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def left(self) -> float:
        """Return the remaining seconds of the section."""
        return self.until - time.monotonic()


@dataclass(frozen=True)
class Section:
    """One measurement.

    Attributes:
        title: Title on the page.
        weight: Weight of its share of the time.
        measure: Returns plain values of a bench: "about" what they are, and lists of rows.
    """

    title: str
    weight: float
    measure: Callable[[Bench], Found]


def sections(scale: Scale) -> dict[str, Section]:
    """Return the sections by name, the most important first."""
    steps = {
        f"step-{name}": Section(
            f"One training step: {name}",
            10 if number == 0 else 8,
            lambda bench, name=name: gpu_steps.training_step(bench, name),
        )
        for number, name in enumerate(scale.steps)
    }
    first, *others = steps
    return {
        "rate": Section("Rate of matrix products", 0.5, gpu_steps.rate),
        first: steps[first],
        "language-model": Section(
            "A deep language model at a high rate", 7, gpu_models.language_model
        ),
        **{name: steps[name] for name in others},
        "depth": Section("A step against depth", 2.5, gpu_steps.depth),
        "decoding": Section("Decoding", 3, gpu_models.decoding),
        "kernels": Section("Kernels of a step", 1, gpu_steps.kernels),
    }


def run(bench: Bench, chosen: dict[str, Section], end: float, write: Callable[[], None]) -> bool:
    """Measure all sections; return whether none failed."""
    whole = True
    weights = {name: section.weight for name, section in chosen.items()}
    for name, section in chosen.items():
        left = end - time.monotonic()
        bench.until = time.monotonic() + left * weights[name] / sum(weights.values())
        bench.left_out = []
        del weights[name]
        began = time.monotonic()
        found: Found = {}
        print(f"{section.title}: {max(bench.left(), 0):.0f} seconds", file=sys.stderr)
        try:
            if left <= 0:
                bench.left_out.append("everything: no time remained")
            else:
                found = section.measure(bench)
        except Exception as error:  # keep the other sections' numbers
            whole = False
            bench.left_out.append(f"{type(error).__name__}: {(str(error) or '?').splitlines()[0]}")
            print(f"{section.title}: {error}", file=sys.stderr)
        found["left_out"] = bench.left_out
        found["seconds"] = time.monotonic() - began
        bench.found[name] = found
        write()
        torch.compiler.reset()  # holds on to models
        if bench.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
    return whole


def markdown(result: Found, chosen: dict[str, Section]) -> str:
    """Return the result as Markdown."""
    where = result["machine"]
    packages = ("torch", "transformers", "x-transformers", "triton")
    versions = ", ".join(f"{k} {v}" for k in packages if (v := where["packages"].get(k)))
    lines = [
        f"# {result['name']}",
        "",
        f"{where['accelerator'] or where['processor']}, {where['cores']} cores, "
        f"{where['threads']} threads; Python {where['python']}, {versions}; scale "
        f"{result['scale']}; commit {result['commit']}; {where['date']}.",
    ]
    for name, section in chosen.items():
        found = result["sections"].get(name)
        if found is None:
            continue
        lines += ["", f"## {section.title}", ""]
        lines += page(found)
        lines += [f"- Left out: {line}." for line in found["left_out"]]
        lines += [f"- Took {found['seconds']:.0f} seconds."]
    return "\n".join(lines) + "\n"


def page(found: Found) -> Iterator[str]:
    """Yield what a section measured, and a table of each of its lists of rows."""
    if "about" in found:
        yield from (found["about"], "")
    for rows in found.values():
        if isinstance(rows, list) and rows and isinstance(rows[0], dict):
            names = [name for name, value in rows[0].items() if not isinstance(value, list)]
            yield f"| {' | '.join(names)} |"
            yield f"|{'---|' * len(names)}"
            yield from (f"| {' | '.join(cell(row[name]) for name in names)} |" for row in rows)
            yield ""


def cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e3 <= abs(value) < 1e9 else f"{value:.4g}"
    text = "" if value is None else str(value)
    return text.replace("|", "\\|")[:160]


def arguments(words: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--scale", choices=SCALES, default="full")
    add("--minutes", type=float, default=6.0, help="time of all sections together (default: 6)")
    add("--seconds", type=float, help="the same time in seconds")
    add("--only", nargs="+", metavar="SECTION", help="sections to run (default: all)")
    add("--commit", help="commit of the source if git is missing")
    add("--out", type=Path, default=ROOT / "benchmarks" / "results")
    args = parser.parse_args(words)
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error(f"torch {torch.__version__} sees no CUDA device here: docs/guide/gpus.md")
    known = sections(SCALES[args.scale])
    if unknown := set(args.only or ()) - set(known):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return args


def main(words: list[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    end = time.monotonic()
    args = arguments(words)
    end += 60 * args.minutes if args.seconds is None else args.seconds
    # One forward method serves several placements and modes; each needs its compiled form.
    torch._dynamo.config.recompile_limit = 64  # type: ignore[attr-defined]
    bench = Bench(torch.device(args.device), SCALES[args.scale])
    chosen = {n: s for n, s in sections(bench.scale).items() if n in (args.only or [n])}
    where = machine(bench.device)
    device = re.sub(r"[^a-z0-9]+", "-", (where["accelerator"] or "cpu").lower())
    result = {
        "name": f"gpu-{device}" + ("" if args.scale == "full" else f"-{args.scale}"),
        "scale": args.scale,
        "commit": args.commit or where["commit"] or "unknown",
        "machine": where,
        "sections": bench.found,
    }

    def write() -> None:
        write_result(result, markdown(result, chosen), args.out)

    whole = run(bench, chosen, end, write)
    print(markdown(result, chosen))
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
