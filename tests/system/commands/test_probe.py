"""`magneto probe`: output, JSON and mistakes."""

import json
from pathlib import Path

import pytest

from magneto.cli import main
from magneto.commands.probe import load_each
from tests.commands import printed, refused

SMALL = """--model.width 16 --model.layers 8 --model.heads 2 --model.ffn_width 32
--data.tokenizer bytes --data.max_length 24 --training.batch_size 4 --training.device cpu
--steps 2""".split()  # noqa: SIM905
PROBE = ("probe", "causal-lm/tiny")


@pytest.fixture(autouse=True)
def eighty_columns(module_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_two_placements_side_by_side(book: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["--data", str(book), "--placements", "post,sub", "--model.layers", "12"]
    out = printed(capsys, *PROBE, *SMALL, *words, "--seeds", "1", "--steps", "1")
    for line in ("Post-LN: likely to fail", "Sub-LN: sound", "Comparison"):
        assert line in out
    assert "rank collapse at initialisation: variation between positions" in out
    assert "No problem found: Sub-LN." in out
    assert "theory for SGD: the update is at most about 48 (paper)" in out
    assert "from 3 to 12 layers, the change of a label's logit in one step grows x" in out
    assert "…" not in out, "nothing is cut off at 80 columns"


def test_json_is_one_object_and_the_file_is_the_same(
    book: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """A trial is compared with the trivial baseline."""
    words = ["--data", str(book), "--seeds", "0", "--json", "--out", str(tmp_path / "out")]
    words += ["--trial", "0.1s", "--training.evaluate_limit", "1"]
    found = json.loads(printed(capsys, *PROBE, *SMALL, *words))
    assert json.loads((tmp_path / "out" / "probe.json").read_text()) == found
    (probe,) = found["probes"]
    assert probe["placement"] == "sub" and probe["layers"] == [8] and probe["growth"] == []
    assert [step["step"] for step in probe["steps"]] == [1, 2]
    layer = probe["steps"][1]["layers"][7]
    assert layer["name"] == "decoder.layers.7"
    assert all(isinstance(value, float) for name, value in layer.items() if name != "name")
    assert set(probe["bound"]["derived"]) == {"paper", "first_order", "telescoped"}
    assert probe["trouble"] == {"fp16": None, "bf16": None}
    assert {finding["name"] for finding in probe["verdict"]["findings"]} == {
        "kept", "moved", "update", "distinct", "imbalance", "attention", "range", "loss",
    }  # fmt: skip
    (trial,) = found["trials"]
    assert trial["status"] == "has not learned yet" and trial["score"] > trial["baseline"] * 0.98


def test_growth_over_depths_needs_no_data(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["--model.width", "16", "--model.heads", "2", "--model.ffn_width", "32"]
    words += ["--depths", "2,4", "--placements", "post,peri", "--seeds", "2", "--data", "nowhere"]
    out = printed(capsys, *PROBE, *words, "--out", tmp_path)
    assert out.count("by one step of") == 4 and "Peri-LN" in out and "none" in out
    assert "…" not in out
    found = json.loads((tmp_path / "probe.json").read_text())
    assert len(found["growth"]) == 2 * 4 and len(found["updates"]) == 2 * 2 * 2 * 4
    assert found["bounds"]["post"] == {"paper": [8.0, 16.0]} and found["bounds"]["peri"] == {}
    assert all(part["interval"] is not None for part in found["growth"])
    assert "--depths needs --seeds" in refused(capsys, *PROBE, *words, "--seeds", "0")


def test_train_writes_what_layers_do(
    book: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["train", "causal-lm/tiny", *SMALL[:-2], "--data", str(book), "--training.steps", "5"]
    words += ["--training.tensorboard", "false", "--model.layers", "2"]
    assert main([*words, "--out", str(tmp_path / "run"), "--probe-every", "2"]) == 0
    lines = (tmp_path / "run" / "probe.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 4]
    line = refused(capsys, *words, "--out", tmp_path / "other", "--probe-every", "1")
    assert "2 steps or more" in line and not (tmp_path / "other").exists()


def test_a_placement_is_probed_once() -> None:
    recipes = load_each("causal-lm/tiny", {}, ["pre", "pre", "sub"])
    assert [recipe.model.placement for recipe in recipes] == ["pre", "sub"]
