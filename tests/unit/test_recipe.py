"""Every recipe parses, has the paper's size, and takes steps when it is shrunk."""

import os
import re
import sys
from pathlib import Path

import pytest
import torch

from magneto.cli import main
from magneto.config import ConfigError
from magneto.language.models import LanguageModel, MaskedLanguageModel
from magneto.progress import ProgressBars
from magneto.recipe import build_recipe, load_recipe, open_run, recipe_names
from magneto.theory.placement import PLACEMENTS
from magneto.training.loop import train
from magneto.translation.model import TranslationModel
from tests.shrunken import shrunken

# Millions: Pre-LN, by the arithmetic of the paper's table (its Sub-LN adds 0.20, 0.39 and 0.59).
PAPER_SIZES = {
    "causal-lm/24l": (303.4, 0.20),
    "causal-lm/48l": (555.4, 0.39),
    "causal-lm/72l": (807.3, 0.59),
    "causal-lm/24l-gpt3-medium": (353.8, 0.25),
    "causal-lm/48l-gpt3-medium": (656.1, 0.49),
    "causal-lm/72l-gpt3-medium": (958.4, 0.74),
}
SHRINK = {"width": 32, "layers": 2, "heads": 4, "ffn_width": 48}
# Millions: encoder, decoder, embedding (the appendix: 18 + 18 layers, hidden 512, inner 2048).
TRANSLATION_SIZES = {
    "translation/opus100": (56.8, 75.8, 32.8),
    "translation/100l-100l": (315.8, 420.9, 32.8),
}


def count_parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def parameters(name: str, placement: str) -> float:
    recipe = load_recipe(name, {"model.placement": placement})
    with torch.device("meta"):
        return count_parameters(LanguageModel(recipe.model)) / 1e6


def test_the_papers_sizes() -> None:
    for name, (expected, more) in PAPER_SIZES.items():
        pre = parameters(name, "pre")
        assert pre == pytest.approx(expected, abs=0.06), name
        assert parameters(name, "sub") - pre == pytest.approx(more, abs=0.006), name


@pytest.mark.parametrize("name", TRANSLATION_SIZES)
def test_sizes_of_translation_models(name: str) -> None:
    with torch.device("meta"):
        model = TranslationModel(load_recipe(name).model)
    stacks = (model.transformer.encoder, model.transformer.decoder, model.embedding)
    found = [count_parameters(part) / 1e6 for part in stacks]
    assert found == pytest.approx(TRANSLATION_SIZES[name], abs=0.06)
    assert count_parameters(model) / 1e6 == pytest.approx(sum(found))  # the output is the table


def test_every_recipe_is_in_the_documentation() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "recipes.md"
    task, named = "", set()
    for line in page.read_text(encoding="utf-8").splitlines():
        if not line.startswith("| `"):
            continue
        for words in re.findall(r"`([^`]+)`", line.split("|")[1]):
            task, _, sizes = words.rpartition("/") if "/" in words else (task, "", words)
            named |= {f"{task}/{size}" for size in sizes.strip("{}").split(",")}
    assert {name for name in recipe_names() if not name.endswith("-gpt3-medium")} <= named


def test_the_papers_learning_rates() -> None:
    for layers, rate in ((24, 1e-3), (48, 1.2e-3), (72, 1.2e-3)):
        for placement, expected in (("sub", rate), ("pre", 5e-4), ("normformer", 5e-4)):
            recipe = load_recipe(f"causal-lm/{layers}l", {"model.placement": placement})
            assert recipe.training.learning_rate == expected
            assert recipe.training.betas == (0.9, 0.98) and recipe.training.clip_norm is None


@pytest.mark.parametrize(
    ("placement", "rate", "size"),
    [("post", 5e-4, 135.258), ("pre", 1e-3, 135.260), ("sub", 3e-3, 135.352)],
)
def test_the_papers_bert(placement: str, rate: float, size: float) -> None:
    """85.1M in the layers, 49.2M in the table, 0.4M positions, 0.66M in the head."""
    recipe = load_recipe("masked-lm/base", {"model.placement": placement})
    with torch.device("meta"):
        count = count_parameters(MaskedLanguageModel(recipe.model)) / 1e6
    assert count == pytest.approx(size, abs=0.001)
    training = recipe.training
    assert (training.learning_rate, training.betas, training.eps) == (rate, (0.9, 0.98), 1e-6)
    assert (training.steps, training.batch_size, training.warmup_steps) == (125000, 2048, 10000)
    assert (training.clip_norm, training.weight_decay) == (2.0, 0.0)


def test_norms_of_vision_have_the_releases_epsilon() -> None:
    """BEiT's is 1e-6; BEiT-3's and torchscale's is 1e-5."""
    vision = [name for name in recipe_names()
              if name.endswith(("/beit-base", "/beit-large", "/beit-v2"))
              or "/imagenet-" in name or "/ade20k-" in name]  # fmt: skip
    assert len(vision) == 7
    assert {load_recipe(name).model.norm_eps for name in vision} == {1e-6}
    assert load_recipe("visual-question-answering/vqa-24l").model.norm_eps == 1e-5


def test_every_recipe_has_a_rate_for_every_placement() -> None:
    """By its own name, or by the default of all others; no rate is of a placement that isn't."""
    rates = {name: load_recipe(name).learning_rates.keys() for name in recipe_names()}
    assert not [name for name, listed in rates.items() if "default" not in listed]
    assert not [name for name, listed in rates.items() if listed - PLACEMENTS.keys() - {"default"}]


# The tiny ones are trained in tests/system/commands/test_next_commands.py.
@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in recipe_names() if not n.endswith("/tiny")])
def test_every_recipe_takes_two_shrunken_steps(name: str, tmp_path: Path) -> None:
    changes: dict[str, object] = {f"model.{key}": value for key, value in SHRINK.items()}
    changes |= {
        "training.steps": 2, "training.batch_size": 4, "training.gradient_accumulation_steps": 2,
        "training.warmup_steps": 1, "training.device": "cpu", "training.tensorboard": False,
        "training.compile": False, "training.evaluate_limit": 1,
    }  # fmt: skip
    changes |= shrunken(name.partition("/")[0], tmp_path)
    recipe = load_recipe(name, changes)
    report = ProgressBars(quiet=True)
    run = tmp_path / "run"
    result = train(recipe.build_task(), recipe.training, run, seed=1, report=report)
    assert result.status == "finished" and result.step == 2
    recipe.save(run / "recipe.yaml")
    assert open_run(run).to_mapping() == recipe.to_mapping()


def test_header_of_every_recipe_says_what_to_expect() -> None:
    from magneto.recipe import recipe_path

    for name in recipe_names():
        text = recipe_path(name).read_text(encoding="utf-8")
        assert f"magneto train {name}" in text, name
        assert "Hardware:" in text and "Expected result:" in text, name


def test_a_rate_that_is_given_is_taken_in_place_of_the_placements() -> None:
    given = load_recipe("causal-lm/tiny", {"training.learning_rate": 0.5, "seed": 0})
    assert (given.training.learning_rate, given.seed) == (0.5, 0)
    table = {"learning_rates.post": 0.25, "learning_rates.default": 0.125}
    for placement, rate in (("post", 0.25), ("sub", 0.125)):
        listed = load_recipe("causal-lm/tiny", {**table, "model.placement": placement})
        assert listed.training.learning_rate == rate


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"model.placment": 1}, ["unknown key model.placment; did you mean model.placement?"]),
        ({"placement": 1}, ["unknown key placement; did you mean model.placement?"]),
        ({"lr": 1, "training.stpes": 2}, ["unknown key lr", "did you mean training.steps?"]),
        ({"task": "causal-ml"}, ["unknown task 'causal-ml'; did you mean causal-lm?"]),
        ({"model.heads": 5, "training.steps": 0}, ["must divide width", "steps must be 1 or more"]),
        ({"seed": "x"}, ["seed must be a whole number"]),
        ({"task": "nowhere.at.all:Task"}, ["task nowhere.at.all:Task", "PYTHONPATH"]),
        ({"learning_rates": {"pre": 1}}, ["training.learning_rate is not set", "no rate for sub"]),
    ],
    ids=str,
)
def test_mistakes_are_answered(changes: dict, lines: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe("causal-lm/tiny", changes)
    text = "\n".join(caught.value.lines)
    assert all(line in text for line in lines), text


def test_a_task_is_found_beside_its_recipe(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    (tmp_path / "task_beside_a_recipe.py").write_text("class Own: pass\n")
    recipe = tmp_path / "own.yaml"
    recipe.write_text("task: task_beside_a_recipe:Own\n")
    with pytest.raises(ConfigError, match="task_beside_a_recipe:Own must have"):
        load_recipe(str(recipe))
    assert os.environ["PYTHONPATH"].split(os.pathsep) == ["elsewhere", str(tmp_path)]


def test_the_nearest_is_named_and_what_is_no_recipe_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="did you mean causal-lm/tiny"):
        load_recipe("causal-lm/tinny")
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "recipe.yaml").write_text("task: causal-lm")
    with pytest.raises(FileNotFoundError, match=r"did you mean .*first"):
        open_run(tmp_path / "frist")
    task = "magneto.language.causal_lm:CausalLanguageModelling"
    with pytest.raises(ConfigError, match=r"has no .*; did you mean CausalLanguageModeling\?"):
        build_recipe("x", {"task": task})
    path = tmp_path / "mine.yaml"
    for text, answer in (("task: causal-lm\nmodel: [1,\n", r"line 3: not YAML"),
                         ("- a list", "must be a mapping")):  # fmt: skip
        path.write_text(text)
        with pytest.raises(ConfigError, match=answer):
            load_recipe(str(path))
    with pytest.raises(ConfigError, match=r"the recipe has no task .*module:Class"):
        build_recipe("x", {})


def test_an_edited_recipe_of_a_run_says_what_can_be_done(tmp_path: Path, capsys) -> None:
    """What is unknown in a run's own recipe was not typed: the place is named, and the way out."""
    path = tmp_path / "recipe.yaml"
    load_recipe("causal-lm/tiny").save(path)
    path.write_text(path.read_text().replace("model:\n", "model:\n  memory_slots: 4\n"))
    assert main(["evaluate", str(tmp_path)]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == "magneto: unknown key model.memory_slots"
    assert str(path) in second and "another version" in second
    assert second.endswith("or remove model.memory_slots")
    path.write_text(path.read_text().replace("  memory_slots: 4\n", ""))
    assert main(["evaluate", str(tmp_path), "--model.widht", "8"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "magneto: unknown key model.widht; did you mean model.width?"
    ]
