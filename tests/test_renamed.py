"""Old names of keys and options are understood, with one line that says the new name."""

import warnings
from pathlib import Path

import pytest

from magneto.cli import main
from magneto.commands.arguments import Parser
from magneto.config import RenamedKey
from magneto.recipe import build_recipe, load_recipe, open_run


@pytest.mark.parametrize(
    ("recipe", "old", "value", "new"),
    [
        ("causal-lm/tiny", "training.micro_batches", "2", "gradient_accumulation_steps"),
        ("causal-lm/tiny", "training.warmup_share", "0.25", "warmup_ratio"),
        ("causal-lm/tiny", "training.divergence_share", "0.25", "divergence_ratio"),
        ("causal-lm/tiny", "data.length", "64", "max_length"),
        ("masked-lm/tiny", "data.length", "64", "max_length"),
        ("masked-lm/tiny", "data.mask_share", "0.25", "mask_ratio"),
        ("text-classification/tiny", "data.length", "64", "max_length"),
        ("translation/tiny", "data.centre", "de", "pivot_language"),
        ("segmentation/tiny", "model.initial_run", "runs/first", "pretrained"),
        ("translation/tiny", "data.group_tokens", "1024", "max_tokens"),
    ],
)
def test_an_old_key_sets_the_new_one(recipe: str, old: str, value: str, new: str) -> None:
    section = old.split(".")[0]
    changes = {"data.languages": "null"} if old == "data.centre" else {}
    with pytest.warns(RenamedKey, match=rf"{old} is called {section}\.{new} now"):
        found = load_recipe(recipe, {old: value, **changes})
    assert str(getattr(getattr(found, section), new)) == value


def test_the_command_line_says_it_in_one_line(capsys: pytest.CaptureFixture) -> None:
    words = ["train", "causal-lm/tiny", "--training.micro_batches", "2", "--data.source", "nowhere"]
    assert main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    hint = "magneto: training.micro_batches is called training.gradient_accumulation_steps now"
    assert lines[0] == hint and len(lines) == 2


def test_a_runs_own_recipe_is_read_without_a_word(tmp_path: Path) -> None:
    recipe = load_recipe("causal-lm/tiny")
    recipe.save(tmp_path / "recipe.yaml")
    text = (tmp_path / "recipe.yaml").read_text()
    (tmp_path / "recipe.yaml").write_text(
        text.replace("gradient_accumulation_steps", "micro_batches").replace(
            "max_length: 128", "length: 128"
        )
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_run(tmp_path).to_mapping() == recipe.to_mapping()


def test_both_names_at_once_are_refused() -> None:
    values = load_recipe("causal-lm/tiny").to_mapping()
    values["data"]["length"] = 8
    with pytest.raises(ValueError, match=r"length is the old name of"):
        build_recipe("both", values)


def test_old_options(capsys: pytest.CaptureFixture) -> None:
    parser = Parser("evaluate", "", "")
    parser.add_argument("--num-fewshot")
    assert parser.parse(["--shots=0,1"]).num_fewshot == "0,1"
    assert "--shots is called --num-fewshot now" in capsys.readouterr().err


def test_a_runs_recipe_of_another_version_says_what_can_be_done(tmp_path: Path, capsys) -> None:
    """What is unknown in a run's own recipe was not typed: the place is named, and the way out."""
    path = tmp_path / "recipe.yaml"
    load_recipe("causal-lm/tiny").save(path)
    path.write_text(path.read_text().replace("model:\n", "model:\n  memory_slots: 4\n"))
    assert main(["evaluate", str(tmp_path)]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == "magneto: unknown key model.memory_slots"
    assert str(path) in second and "another version" in second
    assert second.endswith("take out model.memory_slots")
    path.write_text(path.read_text().replace("  memory_slots: 4\n", ""))
    assert main(["evaluate", str(tmp_path), "--model.widht", "8"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "magneto: unknown key model.widht; did you mean model.width?"
    ]
