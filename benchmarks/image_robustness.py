"""How much of their accuracy do classifiers keep on damaged, sketched and re-rendered images?

    magneto compare image-classification/small --data DIR --placements pre,sub --lrs 1e-3,3e-3 \
        --seeds 1,2,3 --model.layers 12 --model.width 96 --keep-weights --out runs/narrow
    python -m benchmarks.image_robustness runs/narrow --images DIR/test --sets /tmp/sets

Three versions of a folder of labelled images are made, in small what ImageNet-C, -Sketch and -R
are; every finished run of the comparison is measured on each, without further training, as by
`magneto evaluate RUN --data SET --keep NAME`; what comes out is `magneto vision`'s table. Results
go to benchmarks/results/image-robustness-NAME.json and .md.
"""

from __future__ import annotations

import argparse
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFilter, ImageOps

from magneto.analysis.report.provenance import without_places
from magneto.analysis.sweep.sweep import cell_directory, read_result, read_sweep
from magneto.cli import main as magneto
from magneto.commands.columns import markdown
from magneto.commands.vision import plainly
from magneto.commands.vision_runs import read_folders, words
from magneto.commands.vision_table import best_scores, matched_scores, table
from magneto.data.counts import Counts
from magneto.files import plain, write_json, write_text
from magneto.training.environment import environment
from magneto.vision.folders import image_names

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Make the sets, measure the runs, write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("comparison", type=Path, help="of magneto compare --keep-weights")
    parser.add_argument("--images", type=Path, required=True, help="a folder per class")
    parser.add_argument("--sets", type=Path, required=True, help="where the versions are written")
    given = parser.parse_args()
    for name, change in VERSIONS.items():
        make_set(given.images, given.sets / name, change)
    for run in finished_runs(given.comparison):
        for name in VERSIONS:
            if not (run / "scores" / f"{name}.json").is_file():
                words_given = ["evaluate", str(run), "--data", str(given.sets / name)]
                if magneto([*words_given, "--keep", name]):
                    raise SystemExit(f"{run} could not be measured")
    write(given.comparison)


def finished_runs(comparison: Path) -> list[Path]:
    """Return the runs of a comparison that finished."""
    sweep = read_sweep(comparison)
    results = {cell.name: read_result(comparison, cell) or {} for cell in sweep.cells()}
    done = [c for c in sweep.cells() if results[c.name].get("status") == "finished"]
    return [cell_directory(comparison, cell) for cell in done]


def make_set(images: Path, out: Path, change: Callable[[Any, np.random.Generator], Any]) -> None:
    """Write a version of each image, under the same name; the same ones each time."""
    for number, name in enumerate(image_names(images, Counts())):
        path = (out / name).with_suffix(".png")
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            image = Image.open(images / name).convert("RGB")
            change(image, np.random.default_rng(number)).save(path)


def corrupted(image: Any, random: np.random.Generator) -> Any:
    """Damage an image by noise, blur, low contrast, JPEG or coarse pixels, drawn for each image."""
    kind = int(random.integers(5))
    if kind == 0:
        noise = random.normal(0, 30, (image.height, image.width, 1))
        return Image.fromarray((np.asarray(image) + noise).clip(0, 255).astype(np.uint8))
    if kind == 1:
        return image.filter(ImageFilter.GaussianBlur(image.width / 32))
    if kind == 2:
        pixels = np.asarray(image).astype(float)
        return Image.fromarray((pixels.mean() + 0.3 * (pixels - pixels.mean())).astype(np.uint8))
    if kind == 3:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=8)
        return Image.open(file).convert("RGB")
    small = image.resize(
        (max(image.width // 2, 1), max(image.height // 2, 1)), Image.Resampling.BOX
    )
    return small.resize(image.size, Image.Resampling.NEAREST)


def sketched(image: Any, random: np.random.Generator) -> Any:
    """Draw an image's edges, dark on white: the length of the brightness's gradient."""
    grey = np.pad(np.asarray(image.convert("L")).astype(float), 1, mode="edge")
    down, across = grey[2:, 1:-1] - grey[:-2, 1:-1], grey[1:-1, 2:] - grey[1:-1, :-2]
    edges = np.hypot(down, across)
    return Image.fromarray((255 - edges / max(edges.max(), 1) * 255).astype(np.uint8)).convert(
        "RGB"
    )


def rendered(image: Any, random: np.random.Generator) -> Any:
    """Paint an image anew: flat patches of few colours, and other colours for each image."""
    flat = ImageOps.posterize(image.filter(ImageFilter.MedianFilter(3)), 2)
    mixing = np.eye(3) * 0.5 + random.dirichlet((1, 1, 1), 3) * 0.5
    return Image.fromarray((np.asarray(flat) @ mixing.T).clip(0, 255).astype(np.uint8))


VERSIONS = {"corrupted": corrupted, "sketched": sketched, "rendered": rendered}


def write(comparison: Path) -> None:
    """Write the tables."""
    runs = read_folders([comparison])
    rows = list(dict.fromkeys(run.row for run in runs))
    best, matched = best_scores(runs), matched_scores(runs)
    content = {
        "recipe": read_sweep(comparison).recipe, "overrides": read_sweep(comparison).overrides,
        "best": [plainly(score) for score in best],
        "matched": [plainly(score) for scores in matched.values() for score in scores],
        "environment": environment(), "load": os.getloadavg(),
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    place = RESULTS / f"image-robustness-{comparison.name}"
    content = without_places(plain(content))
    write_json(place.with_suffix(".json"), content)
    tables = [table("each row at its best", best, rows)]
    tables += [table(f"all at {words(point)}", found, rows) for point, found in matched.items()]
    lines = [
        f"# Accuracy on damaged, sketched and re-rendered images: {comparison.name}", "",
        f"Recipe {content['recipe']}, {content['overrides']}. Accuracy times 100, mean over seeds "
        "with 95 % intervals; the rate is chosen on the first column.", "",
        *(part for lines in tables for part in (markdown(lines), "")),
    ]  # fmt: skip
    write_text(place.with_suffix(".md"), "\n".join(lines))


if __name__ == "__main__":
    main()
