"""Ladders whose held-out rungs test the predictions of `magneto ladder`.

    OMP_NUM_THREADS=1 python -m benchmarks.ladders [--only NAME,NAME] [--jobs 1] [--out DIR]

Each ladder is a command that resumes where it was stopped, so this line can be killed and started
again. benchmarks/results/ladder-held-out.csv and .md and the reports ladder-NAME.md and .csv are
rewritten after each ladder: the predictions made before a rung was trained, the measured values,
how often the 80 % intervals held, and the factor by which intervals must be widened. Values that
were predicted with today's prior of their quantity are counted apart. Published rows of ladders
that are not in DIR stay, because ladders are trained on several machines.
"""

from __future__ import annotations

import argparse
import csv
import math
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from magneto.commands.ladder import parser as ladder_parser
from magneto.commands.ladder import read_ladder_options
from magneto.files import read_json, write_bytes
from magneto.lab.forecast import PRIORS
from magneto.lab.ladder import Ladder
from magneto.lab.report.ladder import COLUMNS as SIZE_COLUMNS
from magneto.lab.report.ladder import table_rows
from magneto.lab.report.report import as_csv

RESULTS = Path(__file__).parent / "results"
LEVEL = 0.8
# Small enough for two cores: three or four rungs each, all but the first held out, three seeds.
SMALL = "--training.steps 150 --training.evaluate_limit 32 --training.save_every 150 --seeds 1,2,3"
# Bytes in place of a trained vocabulary: 150 steps of 512 end far below byte frequencies.
TOKENS = "causal-lm/tiny --data.tokenizer bytes --data.max_length 64 --seeds 1,2,3"
BYTES = f"{TOKENS} --training.batch_size 8 --training.steps 150"
PAIR = "--placements pre,sub --training.evaluate_limit 32"
TEXT = f"{BYTES} {PAIR} --training.save_every 150"
# Four times the bytes of the other ladders.
LONG = f"{TOKENS} --training.batch_size 16 --training.steps 300 {PAIR} --training.save_every 300"
PAIRS = f"translation/tiny --data.source builtin:phrases:de,en --placements pre,sub {SMALL}"
IMAGES = f"image-classification/tiny --placements pre,sub {SMALL}"
DEEP = (
    f"{BYTES} --placements pre,sub,peri,olmo2 --training.evaluate_limit 32 "
    "--training.save_every 150 --model.layers 24"
)
NARROW = "--model.width 32 --model.heads 4 --model.ffn_width 128"
LADDERS = {
    "images-depth": f"{IMAGES} {NARROW} --depths 6,12,24 --target 96",
    "translation-depth": f"{PAIRS} {NARROW} --depths 6,12,24,36 --target 72 --seeds 1,2",
    "text-depth": f"{TEXT} --model.width 64 --model.heads 4 --model.ffn_width 256 "
    "--depths 6,12,24,48,96 --target 192",
    "translation-width": f"{PAIRS} --model.encoder_layers 3 --model.decoder_layers 3 "
    "--widths 32,64,128,256 --target 512 --seeds 1,2",
    "translation-width-18": f"{PAIRS} --model.encoder_layers 18 --model.decoder_layers 18 "
    "--widths 32,64,128,256 --target 512",
    "translation-width-18-french": f"{PAIRS} --data.source builtin:phrases:fr,en "
    "--model.encoder_layers 18 --model.decoder_layers 18 --widths 32,64,128,256 --target 512",
    "images-width": f"{IMAGES} --model.layers 6 --training.batch_size 32 --widths 32,64,128 "
    "--target 512",
    "images-width-12": f"{IMAGES} --model.layers 12 --training.batch_size 32 "
    "--widths 32,64,128,256 --target 512",
    "text-width": f"{TEXT} --model.layers 12 --widths 32,64,128,256 --target 512",
    "text-width-long": f"{LONG} --model.layers 12 --widths 32,64,128,256 --target 512 --seeds 1,2",
    "text-width-24": f"{DEEP} --widths 32,64,128,256,512 --target 1024",
    "text-width-24-mup": f"{DEEP} --model.parametrization mup --model.base_width 32 "
    "--model.tie_embeddings false --widths 32,64,128,256,512 --target 1024",
    "text-width-mup": f"{BYTES} --model.base_width 32 --model.tie_embeddings false "
    "--grid model.parametrization=standard,mup --widths 32,64,128 --target 256 "
    "--placements pre,sub",
}
TITLES = {"best_rate": "best rate", "stable_rate": "largest stable rate", "loss": "loss",
          "gap": "loss divided by another placement's loss"}  # fmt: skip
COLUMNS: tuple[str, ...] = (
    "ladder", "axis", "size", "from", "row", "against", "what", "value", "low", "high", "measured",
    "holds", "off", "off_below", "off_inverse", "priors", "commit",
)  # fmt: skip
NUMBERS = ("value", "low", "high", "measured", "off", "off_below", "off_inverse")


def command(name: str, out: Path, jobs: int) -> list[str]:
    words = [*LADDERS[name].split(), "--jobs", str(jobs), "--out", str(out / name)]
    return [sys.executable, "-m", "magneto", "ladder", *words]


def ladder_of(name: str) -> Ladder:
    return read_ladder_options(*ladder_parser().parse_with_overrides(LADDERS[name].split()))


def shape_of(name: str) -> str:
    """Return what all rungs of a ladder share: the width, or the layers and parametrisation."""
    ladder = ladder_of(name)
    model = ladder.first_recipe(ladder.sizes[0]).model
    if ladder.axis == "depth":
        return f"width {model.width}"
    stacks = [model.encoder_layers, model.decoder_layers]
    layers = f"{' + '.join(map(str, stacks if all(stacks) else [model.layers]))} layers"
    return layers if model.parametrization == "standard" else f"{layers}, {model.parametrization}"


def held_out(out: Path) -> list[dict[str, Any]]:
    """Return every prediction of a held-out rung, of all ladders that have a page in `out`."""
    rows = []
    for name, found in pages(out):
        keys = ladder_of(name).rate_priors()
        for entry in found["held_out"]:
            forecast = read_json(out / name / "forecasts" / f"{found['axis']}-{entry['size']}.json")
            off = [rate["off"] for rate in entry.get("trivial_rates", {}).values()] or ["", ""]
            rates = entry["what"] == "best_rate"
            key = keys[entry["row"]] if rates else {"gap": "gaps"}.get(entry["what"], entry["what"])
            used = forecast["rows"][entry["row"]]["rate_prior"] if rates else key
            same = used == key and forecast["priors"][key] == asdict(PRIORS[key])
            rows.append({**entry, "ladder": name, "axis": found["axis"],
                         "from": " ".join(map(str, entry["from"])), "commit": forecast["commit"],
                         "priors": "today's" if same else "earlier",
                         "off_below": off[0], "off_inverse": off[1]})  # fmt: skip
    return rows


def published_elsewhere(out: Path) -> Iterator[dict[str, Any]]:
    """Yield the published rows of ladders that have no page in `out`."""
    here = {name for name, _ in pages(out)}
    for row in read_rows(RESULTS / "ladder-held-out.csv"):
        if row["ladder"] not in here:
            numbers = {name: float(row[name]) if row[name] else "" for name in NUMBERS}
            yield {**row, **numbers, "holds": row["holds"] == "True"}


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file by the names of its columns."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def pages(out: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in LADDERS:
        path = out / name / "forecast.json"
        if path.is_file():
            yield name, read_json(path)


def widening(rows: Sequence[dict[str, Any]]) -> float:
    """Return the factor on half-widths in the logarithm at which `LEVEL` of the rows hold."""
    needed = sorted(
        abs(math.log(row["measured"] / row["value"]))
        / math.log(row["high" if row["measured"] > row["value"] else "low"] / row["value"])
        * (1 if row["measured"] > row["value"] else -1)
        for row in rows
        if row["measured"]
    )
    return needed[min(math.ceil(LEVEL * len(needed)), len(needed)) - 1]


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table of predicted and measured values, and how often intervals held."""
    lines = ["# Held-out rungs: predicted and measured", "",
             "Made by `python -m benchmarks.ladders` from ladder-held-out.csv.", "",
             "| quantity | smaller sizes used | priors | values | inside the 80 % interval | "
             "width factor for 80 % | median error factor | median error factor of rule 1 | "
             "median error factor of rule 2 |",
             "|---|--:|---|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
    for what in ("best_rate", "stable_rate", "loss", "gap"):
        for several, priors in product((False, True), ("earlier", "today's")):
            mine = [r for r in rows if r["what"] == what and r["priors"] == priors
                    and (" " in r["from"]) == several]  # fmt: skip
            known = [r for r in mine if r["measured"]]
            if not known:
                continue
            trivial = ["–", "–"]
            if what == "best_rate":
                trivial = [f"{median(r[name] for r in known):.2f}"
                           for name in ("off_below", "off_inverse")]  # fmt: skip
            lines.append(
                f"| {TITLES[what]} | {'two or more' if several else 'one'} | {priors} "
                f"| {len(mine)} "
                f"| {sum(r['holds'] for r in mine)} | {widening(known):.2f} "
                f"| {median(r['off'] for r in known):.3f} | {' | '.join(trivial)} |"
            )
    # Two rows with equal runs below have the prediction 1, which is no order.
    gaps = [row for row in rows if row["what"] == "gap" and row["value"] != 1]
    if gaps:
        lines += ["", order_of_rows(gaps)]
    return "\n".join(lines) + "\n"


def order_of_rows(gaps: Sequence[dict[str, Any]]) -> str:
    """Return how often the predicted order of two rows' losses was right."""
    sure = [row for row in gaps if row["low"] > 1 or row["high"] < 1]
    right = [sum((row["value"] > 1) == (row["measured"] > 1) for row in some)
             for some in (gaps, sure)]  # fmt: skip
    sentence = (
        f"The predicted order of two placements' losses was right in {right[0]} of {len(gaps)} "
        "pairs."
    )
    if not sure:
        return f"{sentence} No interval excluded equal losses."
    return (
        f"{sentence} Where the interval excludes equal losses, the predicted order was right in "
        f"{right[1]} of {len(sure)} pairs."
    )


def write_results(out: Path) -> None:
    """Write the table of all ladders, and the reports of those that have a page in `out`."""
    rows = [*held_out(out), *published_elsewhere(out)]
    rows.sort(key=lambda row: [*LADDERS].index(row["ladder"]))
    write_bytes(RESULTS / "ladder-held-out.csv", as_csv(COLUMNS, rows))
    (RESULTS / "ladder-held-out.md").write_text(summary(rows), encoding="utf-8")
    for name, found in pages(out):
        shutil.copy(out / name / "report.md", RESULTS / f"ladder-{name}.md")
        write_bytes(RESULTS / f"ladder-{name}.csv", as_csv(SIZE_COLUMNS, table_rows(found)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--only", help=f"comma-separated, of {', '.join(LADDERS)} (default: all)")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/ladders"))
    given = parser.parse_args()
    names = given.only.split(",") if given.only else list(LADDERS)
    if unknown := set(names) - LADDERS.keys():
        parser.error(f"no ladder {', '.join(sorted(unknown))}: there are {', '.join(LADDERS)}")
    for name in names:
        subprocess.run(command(name, given.out, given.jobs), check=True)
        write_results(given.out)


if __name__ == "__main__":
    main()
