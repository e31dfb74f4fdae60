"""The table of VQA and NLVR2: both tasks, what was kept, what the leaderboard gave."""

import json
from pathlib import Path

import pytest

from magneto.cli import main
from magneto.commands.vision_runs import VISION_LANGUAGE_TASKS, read_folders
from magneto.config import ConfigError
from tests.commands.test_vision_table import comparison

PRE, SUB = "Pre-LN, 4 layers", "Sub-LN, 4 layers"


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    vqa: dict[tuple, dict | None] = {}
    nlvr: dict[tuple, dict | None] = {}
    for place, better in (("pre", 0.0), ("sub", 0.01)):
        for seed in (1, 2):
            vqa[place, 1e-5, seed] = {"own": 0.70 + better}
            nlvr[place, 1e-5, seed] = {"own": 0.80 + better, "test-P": 0.81 + better}
    made = [comparison(tmp_path / "vqa", vqa, "visual-question-answering"),
            comparison(tmp_path / "nlvr", nlvr, "visual-reasoning")]  # fmt: skip
    for run in (tmp_path / "vqa").glob("cells/*/scores"):
        given = [{"test-dev": {"yes/no": 85.0, "number": 50.0, "other": 60.0, "overall": 71.5}},
                 {"test-standard": {"overall": 71.25}}]  # fmt: skip
        (run / "leaderboard.json").write_text(json.dumps(given))
    return made


def test_one_row_per_placement_and_a_column_per_set(folders: list[Path], capsys) -> None:
    assert main(["vision-language", *map(str, folders), "--markdown"]) == 0
    head, _, *rows = capsys.readouterr().out.split("\n\n")[0].splitlines()
    columns = ["VQA, shapes", "test-dev", "test-standard", "NLVR, shapes", "test-P"]
    assert head.strip("| ").split(" | ") == ["each row at its best", *columns]
    assert [row.split(" | ")[0].strip("| ") for row in rows] == [PRE, SUB]
    numbers = [cell.split(" ")[0] for cell in rows[1].strip("| ").split(" | ")[1:]]
    assert numbers == ["71.00", "71.50", "71.25", "81.00", "82.00"]


def test_a_name_kept_of_both_tasks_is_two_columns(folders: list[Path], capsys) -> None:
    for folder, score in zip(folders, (0.625, 0.75), strict=True):
        for run in folder.glob("cells/*/scores"):
            for name in ("test", "NLVR, shapes"):
                kept = {"metrics": {"accuracy": score}}
                (run / f"{name}.json").write_text(json.dumps(kept))
    assert main(["vision-language", *map(str, folders), "--json"]) == 0
    found = {s["images"]: s["mean"] for s in json.loads(capsys.readouterr().out)["best"]}
    assert found["VQA, shapes: test"] == found["VQA, shapes: NLVR, shapes"] == 62.5
    assert found["NLVR, shapes: test"] == found["NLVR, shapes: NLVR, shapes"] == 75
    assert found["NLVR, shapes"] == pytest.approx(81) and "test" not in found
    assert found["test-dev"] == 71.5  # of one task alone


def test_a_part_of_a_test_set_is_there_once(folders: list[Path]) -> None:
    scores = next(folders[0].glob("cells/*/scores"))
    (scores / "test-dev.json").write_text('{"metrics": {"accuracy": 0.5}}')
    with pytest.raises(
        ConfigError, match=r"leaderboard\.json and .*test-dev\.json both have test-"
    ):
        read_folders(folders, VISION_LANGUAGE_TASKS)


@pytest.mark.parametrize("given", [
    "[]", "[7]", '{"test-dev": 71}', '[{"test-dev": {"all": 7}}]',
    '{"test-dev": {"overall": true}}', '{"test-dev": {"overall": NaN}}',
    '[{"test-dev": {"overall": 71}}, {"test-dev": {"overall": 72}}]', '{"metrics": 7}',
])  # fmt: skip
def test_what_no_leaderboard_gave_is_refused(folders: list[Path], given: str) -> None:
    next(folders[0].glob("cells/*/scores")).joinpath("leaderboard.json").write_text(given)
    with pytest.raises(ConfigError, match=r"leaderboard\.json is neither what"):
        read_folders(folders, VISION_LANGUAGE_TASKS)


def test_documented_comparisons_keep_what_their_runs_are_measured_with() -> None:
    root = Path(__file__).parents[2]
    files = [*root.glob("docs/**/*.md"), *root.glob("src/magneto/recipes/visual-*/*.yaml")]
    texts = (file.read_text("utf-8").replace("\\\n#", " ") for file in files)
    lines = [line for text in texts for line in text.splitlines()]
    compared = [line for line in lines if "magneto compare visual-" in line and "24l" in line]
    assert len(compared) > 4
    assert [line for line in compared if "--keep-weights" not in line] == []


def test_other_tasks_are_refused(folders: list[Path]) -> None:
    with pytest.raises(ConfigError, match="not image-classification or segmentation"):
        read_folders(folders)
    assert len(read_folders(folders, VISION_LANGUAGE_TASKS)) == 8
