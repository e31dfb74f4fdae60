"""`magneto search`: image search by text, and text search by image."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magneto.commands.predict import BATCH, image_paths, predict_readable
from magneto.commands.shared import Parser, answer, at_least_one, decode_input
from magneto.config import ConfigError
from magneto.data.files import existing_path, read_lines
from magneto.data.problems import Counts, guarded
from magneto.files import read_json, write_json
from magneto.progress import ProgressBars
from magneto.runs import load_run, run_task

if TYPE_CHECKING:
    import numpy as np

# Files of the index: vectors, and the text of each, or the image's place in the folder.
VECTORS, NAMES = "vectors.npy", "names.json"


def parser() -> Parser:
    made = Parser(
        "search",
        "Search a folder of images by a text, or the lines of a text file by an image. The run "
        "must be an image-text-retrieval run. The vectors of all images or lines are cached. If a "
        "file or the run changes, the vectors are computed again.",
        'magneto search runs/retrieval "two dogs on a beach" photos/ --top 3\n'
        "  magneto search runs/retrieval photo.jpg captions.txt",
        recipe=True,
    ).with_run()
    made.add_argument("query", help="text in quotes, or an image")
    made.add_argument("among", help="folder of images, or a text file with one text per line")
    made.add_argument("--top", type=at_least_one, default=5, metavar="K", help="number of results")
    return made.with_json()


def main(words: Sequence[str]) -> int:
    args, overrides = parser().parse_with_overrides(words)
    run_task(args.run, overrides, "search")
    opened: Any = load_run(args.run, args.weights, overrides)
    progress = ProgressBars()

    def embed(inputs: Sequence[Any]) -> list[np.ndarray]:
        return [each.numpy() for each in opened.task.predict(opened.model, inputs)]

    query = embed([read_query(args.query)])[0]
    among = existing_path(args.among)
    names, vectors = load_index(among, opened.weights, overrides, embed, progress)
    progress.finish()
    similarity = vectors @ query
    best = (-similarity).argsort(kind="stable")[: args.top]
    found = [{"score": round(float(similarity[n]), 4), "found": names[n]} for n in best]
    value = {"run": str(args.run), "weights": str(opened.weights), "query": args.query,
             "searched": len(names), "results": found}  # fmt: skip
    return answer(args, value, (f"{each['score']:7.4f}  {each['found']}" for each in found))


def read_query(query: str) -> Any:
    from magneto.data.media import IMAGE_ENDINGS

    if os.path.isfile(query):
        with guarded(prefix=f"{query}: "):
            return decode_input(Path(query))
    if query.lower().endswith(IMAGE_ENDINGS) and " " not in query.strip():
        raise ConfigError([f"no image {query}"])
    if not query.strip():
        raise ConfigError(["the text to search for is empty"])
    return query


def load_index(
    among: Path,
    weights: Path,
    overrides: Mapping[str, str],
    embed: Callable[[Sequence[Any]], list[np.ndarray]],
    progress: ProgressBars,
) -> tuple[list[str], np.ndarray]:
    import numpy as np

    from magneto.data.cache import (
        cache_directory,
        create_cached,
        file_states,
        fingerprint,
        is_cached,
    )

    is_folder = among.is_dir()
    files = image_paths([str(among)]) if is_folder else [among]
    own = sorted(weights.rglob("*")) if weights.is_dir() else [weights]
    states = file_states([*files, *(path for path in own if path.is_file())])
    # Folders with other names for the same files share an index, which has no names of images.
    index = cache_directory() / f"index-{fingerprint(states, overrides)}"
    if not is_cached(index, progress):
        if is_folder:
            numbers = {path: number for number, path in enumerate(files)}
            found = [(numbers[path], each)
                     for path, each in predict_readable(files, 1, embed, [])]  # fmt: skip
        else:
            counts = Counts()
            texts = [line.strip() for line in read_lines(among, counts) if line.strip()]
            if counts:
                progress.say(f"{among}{counts.describe()}")
            found = []
            for start in range(0, len(texts), BATCH):
                some = texts[start : start + BATCH]
                found += zip(some, embed(some), strict=True)
                progress.update("indexing", start + len(some), len(texts))
        if not found:
            raise ValueError(f"no texts in {among}")
        with create_cached(index) as directory:
            np.save(directory / VECTORS, np.stack([vector for _, vector in found]))
            write_json(directory / NAMES, [name for name, _ in found])
    names = read_json(index / NAMES)
    return [str(files[n]) for n in names] if is_folder else names, np.load(index / VECTORS)
