"""Images with which something is wrong are named once, whoever meets them, and all are listed."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from magneto.training.prefetch import Prefetch
from magneto.vision.batches import evaluation_images, training_stream
from magneto.vision.config import ImageDataConfig
from magneto.vision.data import load_images
from magneto.vision.problems import BROKEN, BY_PILLOW, FEW, FILE, ImageProblems
from magneto.vision.transforms import Reading, training_transform, validation_transform
from tests.vision.pictures import class_folders, encoded, photo, write

DATA, READING = ImageDataConfig(), Reading(8)


class Said(list[str]):
    """A `Progress` that keeps what is said."""

    def update(self, what: str, done: int, total: int | None) -> None:
        """Show nothing."""

    def say(self, line: str) -> None:
        """Keep a line."""
        self.append(line)


def listed(run: Path) -> list[list[str]]:
    return [line.split("\t") for line in (run / FILE).read_text().splitlines()]


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_and_refused_images_are_listed(tmp_path: Path, workers: int) -> None:
    pytest.importorskip("simplejpeg")
    root = class_folders(tmp_path / "images", each=15)
    for name in ("cat/003.jpg", "dog/007.jpg"):
        write(root / name, b"no image")
    whole = encoded(photo(), "JPEG")
    write(root / "dog/001.jpg", whole[:-40] + whole[-2:])
    run, problems = tmp_path / "run", ImageProblems()
    run.mkdir()
    config = ImageDataConfig(source=str(root), validation_source=str(root))
    split = load_images(config, 1, problems=problems).train
    names = {str(root / n) for n in ("cat/003.jpg", "dog/007.jpg", "dog/001.jpg")}
    assert names <= {split.name(index) for index in range(len(split))}
    stream = training_stream(split, training_transform(DATA, READING), 4, 1)
    stream.next(1, [0])  # before there is a run
    problems.keep_in(run)
    with closing(Prefetch(stream, 1, [0], num_workers=workers)) as prefetch:
        made = iter(prefetch)
        for _ in range(20):
            next(made)
    list(evaluation_images(split, validation_transform(DATA, READING), 8, READING.blank))
    rows = listed(run)
    assert len(rows) == 3 and {name for _, name, _ in rows} == names
    kinds = {Path(name).name: (kind, why) for kind, name, why in rows}
    assert kinds["003.jpg"] == (BROKEN, "no image file that Pillow can identify")
    assert kinds["001.jpg"][0] == BY_PILLOW and kinds["001.jpg"][1]
    assert problems.counts() == {BROKEN: 2, BY_PILLOW: 1}


def test_a_few_are_named_and_round_numbers_told(tmp_path: Path) -> None:
    said = Said()
    problems = ImageProblems(said)
    problems.keep_in(tmp_path)
    for number in [*range(12), *range(12)]:
        problems.met(BROKEN, f"{number}.jpg", "cut\toff\n")
    assert said[0] == f"{BROKEN}: 0.jpg (cut\toff\n)"
    assert len(said) == FEW + 1
    assert said[FEW - 1].endswith(f"; further ones are listed in {tmp_path / FILE}")
    assert said[FEW].startswith(f"{BROKEN}: 10 so far")
    assert listed(tmp_path) == [[BROKEN, f"{n}.jpg", "cut off "] for n in range(12)]


def test_processes_and_resumed_runs_list_each_once(tmp_path: Path) -> None:
    first, second, said = ImageProblems(), ImageProblems(Said()), Said()
    for problems in (first, second):
        problems.keep_in(tmp_path)
        problems.met(BROKEN, "a\udcff.jpg", "cut off")
    first.met(BROKEN, "b.jpg", "cut off")
    third = ImageProblems(said)
    third.met(BROKEN, "b.jpg", "cut off")  # before it has the run
    third.met(BROKEN, "c.jpg", "cut off")
    third.keep_in(tmp_path)
    third.met(BROKEN, "a\udcff.jpg", "cut off")
    assert [name for _, name, _ in listed(tmp_path)] == ["a\\udcff.jpg", "b.jpg", "c.jpg"]
    assert second.counts() == {BROKEN: 3} and second.progress == [] and len(said) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_run_that_can_not_be_written_to(tmp_path: Path) -> None:
    said, sealed = Said(), tmp_path / "run"
    sealed.mkdir(mode=0o500)
    problems = ImageProblems(said)
    problems.keep_in(sealed)
    problems.met(BROKEN, "a.jpg", "cut off")
    assert "can't be written" in said[0] and "a.jpg" in said[1]
