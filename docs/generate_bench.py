"""Write docs/results/bench.md and its figures from what `make bench` measured; no number is ours.

python docs/generate_bench.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

from draw_scaling import figures  # noqa: E402
from write_pages import write_or_check  # noqa: E402

from benchmarks.bench_tables import scaling_sections, sections  # noqa: E402
from magneto.files import read_json  # noqa: E402

RESULTS = DOCS.parent / "benchmarks" / "results"
PAGE = """# Results: a training step beside its peers

Written by `python docs/generate_bench.py`, which `make bench` runs, from
`benchmarks/results/bench-cpu.json` and `scaling-cpu.json`.

`make bench` times one training step of `magneto train` (its loss, its loop, its optimizer) in six
fields, each at three shapes, beside the classes that one would otherwise train: those of
transformers, torchscale, x-transformers, timm and torch, and a page of plain torch. Every one
takes its users' usual step: forward, its loss, backward, the gradient's norm clipped at 1, fused
AdamW. Batches are drawn at random, once, and are the same for all.

**How to read it.** *The products alone* is the limit: the same matrix products as Magneto's step,
forward and backward, and nothing else; no implementation with these sizes gets below it unless it
leaves products out. The contenders of a table take turns, in a new random order each round, each
in a process of its own; medians and quartiles are of single steps, by the clock. *MiB* is the
resident memory that weights, gradients, the optimizer and the step took at their peak, above that
of a process which has taken a small step before. Rows are in the order of their medians; Magneto's
are in bold type. Where quartiles overlap, the order means nothing.
"""
SCALING = """
## How a step grows

`python -m benchmarks.scaling` trains the causal language model (Sub-LN) at growing sizes, each in
a process of its own with one thread. A slope is that of the logarithms, by least squares: 1 means
that twice the size takes twice as long. *Last two* is the slope between the two largest. Start-up
goes from the process' start to the end of its first step, with all imports; memory is the most
bytes that torch had given out at once in a step: weights, gradients, the optimizer, activations.
"""
FIGURE = """
![Time, memory and start-up over their first points](../figures/scaling-light.svg#only-light)
![The same for a dark page](../figures/scaling-dark.svg#only-dark)

Both axes are logarithmic; each line is over its own first point. Beside a panel's name stands the
slope of the step's time.
"""


def read(name: str, part: str) -> dict[str, Any]:
    """Return a result, or one with nothing in it where there is none."""
    path = RESULTS / f"{name}.json"
    return read_json(path) if path.is_file() else {part: {}}


def generated() -> dict[Path, str]:
    """Return the page and its figures, and what is to stand in them."""
    bench, scaling = read("bench-cpu", "cells"), read("scaling-cpu", "curves")
    found, text = {}, PAGE + "\n" + "\n".join(sections(bench)) + "\n"
    if scaling["curves"]:
        found = figures(scaling["curves"], DOCS / "figures")
        text += SCALING + "\n" + "\n".join(scaling_sections(scaling)) + "\n" + FIGURE
    return {DOCS / "results" / "bench.md": text, **found}


def main(words: list[str]) -> int:
    """Write the files; or, with --check, only say whether they are as they would be written."""
    return write_or_check(generated(), DOCS, "generate_bench.py", words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
