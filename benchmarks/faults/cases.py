"""The faults: what is damaged, which command meets it, what must come out. Each from a seed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.damage import ANY, ODD_JSON, ODD_VALUES, OF_TEXT, typo
from benchmarks.faults.place import FIELDS, TEXT, words
from benchmarks.faults.watch import Seen, closed, full_disk, watch
from magneto.files import read_object
from magneto.recipe import recipe_path

NUMBERS = (
    "training.steps", "training.batch_size", "training.learning_rate", "training.power",
    "training.betas", "training.warmup_steps", "training.clip_norm", "training.device",
    "training.num_workers", "training.keep_checkpoints", "training.ema_decay", "model.width",
    "model.layers", "model.heads", "model.vocab_size", "model.dropout", "model.placement",
    "model.positions", "data.vocab_size", "data.max_length", "data.validation_fraction",
    "data.source", "data.tokenizer", "seed", "task",
)  # fmt: skip
RUN = "runs/text"
# Command, run, the files of which it is asked about one, and further words.
ASKED = (
    ("predict", "images", "images/*/*.png"),
    ("predict", "questions", "questions/*/*.jpg", "Is it red?"),
    ("predict", "classification", "rows.csv"),
    ("transcribe", "speech", "speech/*.wav"),
)


@dataclass(frozen=True)
class Case:
    """A fault.

    Attributes:
        group: Kind of fault.
        name: What is done, in words.
        run: Does it in an empty folder, beside the folder of undamaged data; returns what was seen.
    """

    group: str
    name: str
    run: Callable[[Path, Path], Seen]


def all_cases(per_group: int) -> Iterator[Case]:
    """Yield so many faults of each kind, the same ones each time."""
    groups = (odd_value, misspelt_recipe, damaged_data, damaged_input, damaged_run,
              damaged_cache, broken_weights, full, killed)  # fmt: skip
    shares = (1.5, 1.5, 3.0, 1.0, 1.5, 0.5, 0.7, 0.5, 0.4)
    for group, share in zip(groups, shares, strict=True):
        for seed in range(max(1, round(per_group * share))):
            yield group(random.Random(f"{group.__name__} {seed}"))
    yield from without_streams()


def odd_value(draw: random.Random) -> Case:
    """Give a field what nobody should."""
    field, value = draw.choice(NUMBERS), draw.choice(ODD_VALUES)
    if (field, value) == ("training.steps", "1e12"):
        value = "1e18"  # the other is a long run, and no fault

    def run(place: Path, folder: Path) -> Seen:
        usual = words("text", place, folder / "run")
        if field == "data.source":  # which --data names
            del usual[2:4]
        return watch([*usual, f"--{field}={value}"])

    return Case("odd value", f"--{field} {value}", run)


def misspelt_recipe(draw: random.Random) -> Case:
    """Make up to three slips of the keyboard in a recipe."""
    name = FIELDS[draw.choice(list(FIELDS))][0]
    text = recipe_path(name).read_text(encoding="utf-8")
    for _ in range(draw.randint(1, 3)):
        text = typo(text, draw)

    def run(place: Path, folder: Path) -> Seen:
        path = folder / "mine.yaml"
        path.write_text(text, encoding="utf-8")
        # To look at the recipe is enough: a slip that leaves it valid would train for long.
        return watch(["train", str(path), "--out", str(place / "book.txt")])

    return Case("misspelt recipe", f"{name}, slips of the keyboard", run)


def damaged_data(draw: random.Random) -> Case:
    """Damage a file of a field's data."""
    field = draw.choice(list(FIELDS))
    harm, seed = draw.choice(OF_TEXT), draw.random()

    def run(place: Path, folder: Path) -> Seen:
        source, pattern = FIELDS[field][2:]
        first = source.split("/")[0]
        if (place / first).is_dir():
            shutil.copytree(place / first, folder / first)
        else:
            shutil.copy(place / first, folder / first)
        files = sorted(folder.glob(pattern))
        _damage(random.Random(seed).choice(files), harm, seed)
        return watch(words(field, folder, folder / "run"))

    return Case("damaged data", f"{field}: {harm.__name__}", run)


def damaged_input(draw: random.Random) -> Case:
    """Ask a run about a file that is damaged."""
    command, run_name, pattern, *more = draw.choice(ASKED)
    harm, seed = draw.choice(OF_TEXT), draw.random()

    def run(place: Path, folder: Path) -> Seen:
        file = random.Random(seed).choice(sorted(place.glob(pattern)))
        copied = Path(shutil.copy(file, folder / file.name))
        _damage(copied, harm, seed)
        out = ["--out", str(folder)] if command == "predict" else []
        return watch([command, str(place / "runs" / run_name), str(copied), *more, *out])

    return Case("damaged input", f"{command} {run_name}: {harm.__name__}", run)


def damaged_run(draw: random.Random) -> Case:
    """Damage a file that a run left, then use the run."""
    files = ("result.json", "environment.json", "recipe.yaml", "metrics.jsonl",
             "final/manifest.json", "final/model.safetensors", "tokenizer/tokenizer.json",
             "best/model.safetensors", "checkpoints/step-00000004/state.json",
             "checkpoints/step-00000004/optimizer.safetensors")  # fmt: skip
    name, harm, seed = draw.choice(files), draw.choice(OF_TEXT), draw.random()
    command = draw.choice((["evaluate", "RUN"], ["report", "RUN"], ["generate", "RUN", "The"],
                           ["train", "--resume", "RUN", "--training.steps", "6"]))  # fmt: skip

    def run(place: Path, folder: Path) -> Seen:
        copied = Path(shutil.copytree(place / RUN, folder / "run"))
        if (copied / name).exists():
            _damage(copied / name, harm, seed)
        return watch([str(copied) if word == "RUN" else word for word in command])

    return Case("damaged run", f"{command[0]}, {name}: {harm.__name__}", run)


def damaged_cache(draw: random.Random) -> Case:
    """Damage a file of the token cache; the same must come out as before."""
    harm, seed = draw.choice(ANY), draw.random()

    def run(place: Path, folder: Path) -> Seen:
        files = sorted(path for path in (place / "cache").glob("text-*/*") if path.stat().st_size)
        _damage(random.Random(seed).choice(files), harm, seed)
        return _same(watch(words("text", place, folder / "run")), place, folder)

    return Case("damaged cache", f"a file of the token cache: {harm.__name__}", run)


def broken_weights(draw: random.Random) -> Case:
    """Convert a file of weights that is damaged, or none."""
    ending, harm = draw.choice((".safetensors", ".pt", ".bin")), draw.choice((*ANY, OF_TEXT[-1]))
    seed = draw.random()

    def run(place: Path, folder: Path) -> Seen:
        path = folder / f"weights{ending}"
        shutil.copy(place / RUN / "final" / "model.safetensors", path)
        _damage(path, harm, seed)
        return watch(["convert", str(path), str(folder / "out")])

    return Case("broken weights", f"convert weights{ending}: {harm.__name__}", run)


def full(draw: random.Random) -> Case:
    """Let no file grow beyond a size, as a full disk does."""
    size = draw.choice((2_000, 5_000, 20_000, 60_000, 100_000, 150_000))

    def run(place: Path, folder: Path) -> Seen:
        return watch(words("text", place, folder / "run"), full_disk(size))

    return Case("full disk", f"no file can grow beyond {size:,} bytes", run)


def killed(draw: random.Random) -> Case:
    """Kill a run at a moment, go on with it; the same must come out as without."""
    after = draw.uniform(0.05, 4.0)

    def run(place: Path, folder: Path) -> Seen:
        watch(words("text", place, folder / "run"), kill_after=after)
        begun = (folder / "run" / "recipe.yaml").is_file()
        again = ["train", "--resume", str(folder / "run")]
        return _same(watch(again if begun else words("text", place, folder / "run")), place, folder)

    return Case("killed", f"SIGKILL after {after:.2f} s, and on again", run)


def without_streams() -> Iterator[Case]:
    """Close standard streams, as `2>&-` does."""
    for streams in ((1,), (2,), (1, 2), (0, 1, 2)):

        def run(place: Path, folder: Path, streams: tuple[int, ...] = streams) -> Seen:
            seen = watch(words("text", place, folder / "run"), closed(*streams))
            return _same(seen, place, folder)

        yield Case("closed streams", " ".join(f"{number}>&-" for number in streams), run)
    for value in ODD_JSON[:3]:

        def config(place: Path, folder: Path, value: bytes = value) -> Seen:
            (folder / "config.json").write_bytes(value)
            return watch(["convert", str(folder), str(folder / "out"), *TEXT[:0]])

        yield Case("broken weights", f"convert a folder whose config.json is {value!r}", config)


def _damage(path: Path, harm: Callable[[bytes, random.Random], bytes], seed: float) -> None:
    content = path.read_bytes()
    path.write_bytes(harm(content, random.Random(seed)) if content else b"x")


def _same(seen: Seen, place: Path, folder: Path) -> Seen:
    """Note a result that is another than without the fault: gravest of all findings."""
    if seen.code != 0:
        return seen
    results = [
        read_object(run / "result.json", "best")["best"] for run in (place / RUN, folder / "run")
    ]
    if results[0] != results[1]:
        return Seen(99, [f"another result: {results[1]}, not {results[0]}"])
    return seen
