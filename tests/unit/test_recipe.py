"""Every recipe parses, has the paper's size, and takes steps when it is shrunk."""

import os
import re
import sys
from pathlib import Path

import pytest
import torch

from magneto.cli import main
from magneto.config import ConfigError
from magneto.progress import ProgressBars
from magneto.recipe import build_recipe, load_recipe, open_run, recipe_names, recipe_path
from magneto.theory.placement import PLACEMENTS
from magneto.training.loop import train
from magneto.training.model import FillRecorder
from tests.shrunken import shrunken

# Millions of parameters of Pre-LN, and what Sub-LN adds, by the arithmetic of the papers' tables.
# Appendices: translation has 18 + 18 layers, hidden 512, inner 2048; BEiT's base has 85.8 (Sub-LN
# 85.9), its large backbone 303.3 (303.5), beside heads of 6.3 and 8.4; BERT has 85.1 in the layers,
# 49.2 in the table, 0.4 positions, 0.66 in the head.
SIZES = {
    "causal-lm/24l": (303.4, 0.20),
    "causal-lm/48l": (555.4, 0.39),
    "causal-lm/72l": (807.3, 0.59),
    "causal-lm/24l-gpt3-medium": (353.8, 0.25),
    "causal-lm/48l-gpt3-medium": (656.1, 0.49),
    "causal-lm/72l-gpt3-medium": (958.4, 0.74),
    "masked-lm/base": (135.26, 0.09),
    "translation/opus100": (165.25, 0.18),
    "translation/100l-100l": (768.5, 1.02),
    "image-modelling/beit-base": (92.1, 0.09),
    "image-modelling/beit-large": (311.7, 0.25),
    "visual-question-answering/vqa-24l": (210.7, 0.26),
    "visual-reasoning/nlvr2-24l": (208.6, 0.26),
    "image-text-retrieval/coco-24l": (207.0, 0.26),
    "image-captioning/coco-24l": (241.4, 0.26),
    "vision-language-modelling/beit3-24l": (246.1, 0.26),
}
SHRINK = {"width": 32, "layers": 2, "heads": 4, "ffn_width": 48}


def parameters(name: str, placement: str) -> float:
    """Return millions of parameters; layers are alike, so the first two of each stack tell."""

    def count(**layers: int) -> int:
        changes = {f"model.{stack}": number for stack, number in layers.items()}
        recipe = load_recipe(name, {"model.placement": placement, **changes})
        with torch.device("meta"), FillRecorder():
            model = recipe.build_task().build_model()
        return sum(parameter.numel() for parameter in model.parameters())

    model = load_recipe(name).model
    pair = ("encoder_layers", "decoder_layers")
    stacks = {s: getattr(model, s) for s in (pair if model.encoder_layers else ("layers",))}
    one = dict.fromkeys(stacks, 1)
    first = count(**one)
    each = {stack: count(**{**one, stack: 2}) - first for stack in stacks}
    return (first + sum((stacks[s] - 1) * more for s, more in each.items())) / 1e6


@pytest.mark.parametrize("name", SIZES)
def test_the_papers_sizes(name: str) -> None:
    expected, more = SIZES[name]
    pre = parameters(name, "pre")
    assert pre == pytest.approx(expected, abs=0.06)
    assert parameters(name, "sub") - pre == pytest.approx(more, abs=0.006)


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


def test_the_papers_settings() -> None:
    for layers, rate in ((24, 1e-3), (48, 1.2e-3), (72, 1.2e-3)):
        for placement, expected in (("sub", rate), ("pre", 5e-4), ("normformer", 5e-4)):
            gpt = load_recipe(f"causal-lm/{layers}l", {"model.placement": placement}).training
            assert (gpt.learning_rate, gpt.betas, gpt.clip_norm) == (expected, (0.9, 0.98), None)
    for placement, rate in (("post", 5e-4), ("pre", 1e-3), ("sub", 3e-3)):
        bert = load_recipe("masked-lm/base", {"model.placement": placement}).training
        assert (bert.learning_rate, bert.betas, bert.eps) == (rate, (0.9, 0.98), 1e-6)
        assert (bert.steps, bert.batch_size, bert.warmup_steps) == (125000, 2048, 10000)
        assert (bert.clip_norm, bert.weight_decay) == (2.0, 0.0)


def test_norms_of_vision_have_the_releases_epsilon() -> None:
    """BEiT's is 1e-6; BEiT-3's and torchscale's is 1e-5."""
    vision = [name for name in recipe_names()
              if name.endswith(("/beit-base", "/beit-large", "/beit-v2"))
              or "/imagenet-" in name or "/ade20k-" in name]  # fmt: skip
    assert len(vision) == 7
    assert {load_recipe(name).model.norm_eps for name in vision} == {1e-6}
    assert load_recipe("visual-question-answering/vqa-24l").model.norm_eps == 1e-5


def test_every_recipe_has_a_rate_for_every_placement_and_a_header() -> None:
    """By its own name, or by the default of all others; its header says what to expect."""
    for name in recipe_names():
        listed = load_recipe(name).learning_rates.keys()
        assert "default" in listed and listed <= {*PLACEMENTS, "default"}, name
        text = recipe_path(name).read_text(encoding="utf-8")
        assert f"magneto train {name}" in text, name
        assert "Hardware:" in text and "Expected result:" in text, name


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


def test_a_rate_that_is_given_is_taken_in_place_of_the_placements() -> None:
    given = load_recipe("causal-lm/tiny", {"training.learning_rate": 0.5, "seed": 0})
    assert (given.training.learning_rate, given.seed) == (0.5, 0)
    table = {"learning_rates.post": 0.25, "learning_rates.default": 0.125, "learning_rates.a:B": 1}
    for placement, rate in (("post", 0.25), ("sub", 0.125)):
        listed = load_recipe("causal-lm/tiny", {**table, "model.placement": placement})
        assert listed.training.learning_rate == rate


def test_mistakes_are_answered() -> None:
    for changes, *lines in (
        ({"model.placment": 1}, "unknown key model.placment; did you mean model.placement?"),
        ({"modle": {}}, "unknown key modle; did you mean model?"),
        ({"placement": 1}, "unknown key placement; did you mean model.placement?"),
        ({"lr": 1, "training.stpes": 2}, "unknown key lr", "did you mean training.steps?"),
        ({"task": "causal-ml"}, "unknown task 'causal-ml'; did you mean causal-lm?"),
        ({"model.heads": 5, "training.steps": 0}, "must divide width", "steps must be 1 or more"),
        ({"seed": "x"}, "seed must be a whole number"),
        ({"task": "nowhere.at.all:Task"}, "task nowhere.at.all:Task", "PYTHONPATH"),
        ({"task": ":Class"}, "task :Class: "),
        ({"task": ".x:Class"}, "task .x:Class: "),
        ({"learning_rates.sbu": 1}, "learning_rates.sbu; did you mean learning_rates.sub?"),
        ({"learning_rates": {"pre": 1}}, "training.learning_rate is not set", "no rate for sub"),
    ):
        with pytest.raises(ConfigError) as caught:
            load_recipe("causal-lm/tiny", changes)
        text = "\n".join(caught.value.lines)
        assert all(line in text for line in lines), text


def test_a_task_is_found_beside_its_recipe(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    (tmp_path / "task_beside_a_recipe.py").write_text(
        "from magneto.language.config import LanguageModelConfig, TextDataConfig\n"
        "class Own: pass\n"
        "class Model: ModelConfig = LanguageModelConfig\n"
        "class Data: DataConfig = TextDataConfig\n"
    )
    recipe = tmp_path / "own.yaml"
    for name in ("Own", "Model", "Data"):
        recipe.write_text(f"task: task_beside_a_recipe:{name}\n")
        with pytest.raises(ConfigError, match=f"task_beside_a_recipe:{name} needs"):
            load_recipe(str(recipe))
    assert os.environ["PYTHONPATH"].split(os.pathsep) == ["elsewhere", str(tmp_path)]


def test_the_nearest_is_named_and_what_is_no_recipe_is_said(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "recipe.yaml").write_text("task: causal-lm")
    with pytest.raises(FileNotFoundError, match=r"did you mean .*first"):
        open_run(tmp_path / "frist")
    task = "magneto.language.causal_lm:CausalLanguageModelling"
    with pytest.raises(ConfigError, match=r"has no .*; did you mean CausalLanguageModeling\?"):
        build_recipe("x", {"task": task})
    (tmp_path / "mine.yaml").write_text("- a list")
    with pytest.raises(ConfigError, match="must be a mapping"):
        load_recipe(str(tmp_path / "mine.yaml"))
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
