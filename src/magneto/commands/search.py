"""`magneto search`: the images of a folder that a text describes, or the texts of an image."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magneto.commands.shared import Parser, answer, decode_input
from magneto.config import ConfigError
from magneto.data.files import existing_path, read_lines
from magneto.data.problems import BadRecord, Counts, guarded
from magneto.progress import ProgressBars
from magneto.recipe import open_run

if TYPE_CHECKING:
    import numpy as np

# Images, or texts, that the model reads at once.
BATCH = 64
# Of the index: vectors, and what each is of.
VECTORS, NAMES = "vectors.npy", "names.json"


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "search",
        "Find, by an image-text-retrieval run, the images of a folder that a text describes, or\n"
        "the lines of a text file that describe an image. What the folder or the file holds is\n"
        "read once: the index is kept, and made again when a file or the run has changed.",
        'magneto search runs/retrieval "two dogs on a beach" photos/ --top 3\n'
        "  magneto search runs/retrieval photo.jpg captions.txt",
        recipe=True,
    ).with_run()
    made.add_argument("query", help="a text in quotes, or an image")
    made.add_argument("among", help="a folder of images, or a text file with one per line")
    made.add_argument("--top", type=int, default=5, help="how many are shown (5)")
    return made.with_json()


def main(words: Sequence[str]) -> int:
    """Run the command."""
    made = parser()
    given, overrides = made.parse_with_overrides(words)
    if given.top < 1:
        made.error(f"--top {given.top}: at least 1")
    open_run(given.run, overrides)  # what is wrong with it is said before torch is imported
    import numpy as np

    from magneto.runs import load_run

    opened: Any = load_run(given.run, given.weights, overrides, verb="search")
    report = ProgressBars()

    def embed(inputs: Sequence[Any]) -> np.ndarray:
        return np.stack([each.numpy() for each in opened.task.predict(opened.model, inputs)])

    query = embed([asked(given.query)])[0]
    names, vectors = indexed(existing_path(given.among), opened.weights, overrides, embed, report)
    report.finish()
    likeness = vectors @ query
    best = (-likeness).argsort(kind="stable")[: given.top]
    found = [{"score": round(float(likeness[n]), 4), "found": names[n]} for n in best]
    value = {"run": str(given.run), "weights": str(opened.weights), "query": given.query,
             "searched": len(names), "results": found}  # fmt: skip
    return answer(given, value, (f"{each['score']:7.4f}  {each['found']}" for each in found))


def asked(query: str) -> Any:
    """Return the image that a query names, or the text that it is.

    Raises:
        ValueError: If the image can't be read.
        ConfigError: If there is no such image, or no text.
    """
    from magneto.data.media import IMAGE_ENDINGS

    if os.path.isfile(query):
        return read_picture(Path(query))
    if query.lower().endswith(IMAGE_ENDINGS) and " " not in query.strip():
        raise ConfigError([f"no image {query}"])
    if not query.strip():
        raise ConfigError(["the text to search for is empty"])
    return query


def read_picture(path: Path) -> Any:
    """Return an image, decoded.

    Raises:
        ValueError: If it can't be read.
    """
    with guarded(prefix=f"{path}: "):
        return decode_input(path)


def indexed(
    among: Path,
    weights: Path,
    overrides: Mapping[str, str],
    embed: Callable[[Sequence[Any]], np.ndarray],
    report: ProgressBars,
) -> tuple[list[str], np.ndarray]:
    """Return what is searched, and its vectors, from the cache if nothing has changed.

    Args:
        among: A folder of images, or a file of texts.
        weights: Of the run: another index for others.
        overrides: Fields of its recipe, likewise.
        embed: From images or texts to vectors, (inputs, width).
        report: Told of the work, and of images that can't be read.

    Raises:
        ValueError: If there is nothing that can be read.
    """
    import numpy as np

    from magneto.data.cache import cache_directory, file_states, fingerprint, is_kept, made_whole
    from magneto.data.formats import media_names
    from magneto.files import read_json, write_json

    read: Callable[[str], Any] = str
    if among.is_dir():
        files = [among / name for name in media_names(among, "image", Counts())]
        names, read = [str(path) for path in files], lambda name: read_picture(Path(name))
    else:
        files, texts = [among], [line.strip() for line in read_lines(among, Counts())]
        names = [text for text in texts if text]
    if not names:
        what = "images" if among.is_dir() else "texts"
        raise ValueError(f"nothing to search in {among}: it has no {what}")
    own = sorted(weights.rglob("*")) if weights.is_dir() else [weights]
    states = file_states([*files, *(path for path in own if path.is_file())])
    held = cache_directory() / f"search-{fingerprint(states, overrides)}"
    if not is_kept(held, report):
        known, parts = [], []
        for start in range(0, len(names), BATCH):
            some = list[Any]()
            for name in names[start : start + BATCH]:
                try:
                    some.append(read(name))
                    known.append(name)
                except BadRecord as error:
                    report.say(f"{error}; left out")
            if some:
                parts.append(embed(some))
            report.update("making the index", min(start + BATCH, len(names)), len(names))
        if not known:
            raise ValueError(f"none of {len(names)} files in {among} could be read as an image")
        with made_whole(held) as aside:
            np.save(aside / VECTORS, np.concatenate(parts))
            write_json(aside / NAMES, known)
    return read_json(held / NAMES), np.load(held / VECTORS)
