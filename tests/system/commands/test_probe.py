"""`magneto probe`: output, JSON and mistakes."""

import json
import math
import re
from argparse import Namespace
from pathlib import Path
from unittest.mock import MagicMock, call

import pytest

from magneto.cli import main
from magneto.commands import probe
from magneto.lab import coordinates, diagnosis, update
from magneto.lab.coordinates import Coordinate
from magneto.lab.diagnosis import Diagnosis, Trial
from magneto.lab.probe import LayerReading
from magneto.lab.short_run import PEAK_STEPS, FirstStep, ShortRun, StepReading
from magneto.lab.update import Bound, Growth, Update
from magneto.lab.verdict import judge
from magneto.progress import ProgressBars
from magneto.theory.placement import PLACEMENTS
from tests.commands import answer, printed, refused

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
    assert "rank collapse at initialisation: at layer 12, the variation between positions" in out
    assert "No problem found in Sub-LN." in out
    bound = "at most about C x learning rate x width, with C = 48 (paper)"
    assert f"theory: the first SGD step changes a label's logit by {bound}" in out
    assert "change of a label's logit in one step, with 12 layers relative to 3: x" in out
    assert "…" not in out, "nothing is cut off at 80 columns"


def test_json_is_one_object_and_the_file_is_the_same(
    book: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """A trial is compared with the trivial baseline. Steps at the peak rate are not in warm-up."""
    words = ["--data", str(book), "--seeds", "0", "--json", "--out", str(tmp_path / "out")]
    words += ["--trial", "0.1s", "--training.evaluate_limit", "1", "--model.layers", "4"]
    found = json.loads(printed(capsys, *PROBE, *SMALL, *words))
    assert json.loads((tmp_path / "out" / "probe.json").read_text()) == found
    (probe,) = found["probes"]
    assert probe["placement"] == "sub" and probe["layers"] == [4] and probe["growth"] == []
    assert [step["step"] for step in probe["steps"]] == [1, 2]
    rates = {name: [step["learning_rate"] for step in probe[name]]
             for name in ("steps", "peak_steps", "first_steps")}  # fmt: skip
    peak = probe["learning_rate"]
    assert rates["peak_steps"] == [peak] * PEAK_STEPS and max(rates["steps"]) < peak
    assert rates["first_steps"][0] == 0 and peak in rates["first_steps"]
    layer = probe["steps"][1]["layers"][3]
    assert layer["name"] == "decoder.layers.3"
    assert all(isinstance(value, float) for name, value in layer.items() if name != "name")
    assert set(probe["bound"]["derived"]) == {"paper", "first_order", "telescoped"}
    assert probe["trouble"] == {"fp16": None, "bf16": None}
    texts = {finding["name"]: finding["text"] for finding in probe["verdict"]["findings"]}
    assert texts.keys() == {
        "kept", "moved", "update", "distinct", "imbalance", "attention", "range", "loss",
    }  # fmt: skip
    assert texts["distinct"].startswith(f"after {PEAK_STEPS} steps at the peak rate")
    (trial,) = found["trials"]
    assert trial["status"] == "has not learned yet" and trial["score"] > trial["baseline"] * 0.98


def test_growth_over_depths_needs_no_data(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--model.width", "16", "--model.heads", "2", "--model.ffn_width", "32"]
    words += ["--depths", "2,4", "--placements", "post,peri", "--seeds", "2", "--data", "nowhere"]
    out = printed(capsys, *PROBE, *words, "--out", tmp_path)
    assert out.count("in one step of") == 5 and "Peri-LN" in out and "none" in out
    assert "…" not in out
    found = json.loads((tmp_path / "probe.json").read_text())
    assert len(found["growth"]) == 2 * 4 and len(found["updates"]) == 2 * 2 * 2 * 4
    assert found["bounds"]["post"] == {"paper": [8.0, 16.0]} and found["bounds"]["peri"] == {}
    assert all(part["interval"] is not None for part in found["growth"])
    measure = MagicMock(side_effect=ValueError("enough"))
    monkeypatch.setattr(update, "measure_growth", measure)
    refused(capsys, *PROBE, *words[:8], "--stack", "encoder")
    assert measure.call_args.kwargs.items() >= {"seeds": range(5), "stack": "encoder"}.items()
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
    recipes = probe.load_each("causal-lm/tiny", {}, ["pre", "pre", "sub"])
    assert [recipe.model.placement for recipe in recipes] == ["pre", "sub"]


def test_each_placement_has_its_own_probe_and_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = MagicMock(return_value=Trial("learned", "", "loss", 1.0, 2.0, 1.9, 3, 4, 5.0))
    monkeypatch.setattr(diagnosis, "diagnose", diagnose := MagicMock())
    monkeypatch.setattr(diagnosis, "run_trial", trial)
    recipes, quiet = probe.load_each("causal-lm/tiny", {}, ["pre", "sub"]), ProgressBars(quiet=True)
    probe.diagnose_each(recipes, Namespace(steps=7, seeds=None, trial=2.5), quiet)
    how = {"steps": 7, "seeds": 3, "progress": quiet}
    assert diagnose.call_args_list == [call(recipe, **how) for recipe in recipes]
    assert trial.call_args_list == [call(recipe, 2.5, quiet) for recipe in recipes]


def test_widths_are_measured_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [Coordinate("top", {8: 1.0, 16: 1.0}, {8: 1.0, 16: 2.0})]
    measure, draw = MagicMock(return_value=made), MagicMock(return_value=b"<svg>")
    monkeypatch.setattr(coordinates, "measure_coordinates", measure)
    monkeypatch.setattr(coordinates, "draw_coordinates", draw)
    words = ["--coordinates", "16,8", "--steps", "4", "--out", tmp_path]
    found = answer(capsys, *PROBE, *words)
    assert measure.call_args.args[1:3] == ([8, 16], 4) and draw.call_args == call(made, 4)
    assert (found["widths"], found["steps"]) == ([8, 16], 4)
    assert found["coordinates"][0]["exponent"] == pytest.approx(1.0)
    assert (tmp_path / "coordinates.svg").read_bytes() == b"<svg>"


def test_numbers_of_a_probe_are_in_their_columns() -> None:
    first = [LayerReading(f"model.{stack}.layers.{n}", n + 2.0, 9, 0.5, None, 3.0, 1.5, 1, 1.0)
             for stack in ("encoder", "decoder") for n in (0, 1)]  # fmt: skip
    last = [LayerReading(each.name, 4.0, 9, 0.25, 0.125, 7.0, None, 1, 2.0) for each in first]
    rows = [line.split() for line in probe.layer_table(first, last, 5).splitlines()]
    assert rows[1] == ["layer", "1→5", "similarity", "1→5", "weight", "logit", "(nats)"]
    assert rows[3] == ["encoder", "1", "3→4", "0.889→0.75", "0.5→0.25", "0.12", "3→7", "1.5→-"]
    assert [row[0] for row in rows[2:]] == ["encoder"] * 2 + ["decoder"] * 2
    assert probe.layer_table(first[2:], last[2:], 5).splitlines()[3].split()[0] == "1"
    assert probe.thin(9, 9) == [*range(9)] and probe.thin(13, 5) == [0, 3, 6, 9, 12]
    assert list(map(probe.number, (0.0, None, 0.12345))) == ["0", "-", "0.123"]
    assert list(map(probe.brief, (99.96, 100.4, 1e6, 0.1234, 0.01234))) == [
        "100", "100", "1e+06", "0.123", "0.012"]  # fmt: skip
    theory = probe.bound_line(Bound({"paper": 48.0, "other": 2.5}, {"paper": 51.25, "other": 9.0}))
    assert "with C = 48 (paper), 2.5 (other). " in theory
    assert theory.endswith(" C = 51.2 (paper)")
    assert probe.bound_line(Bound({}, {}, "no bound")) == "theory: no bound"


def test_placements_are_compared_in_their_columns() -> None:
    layers = [LayerReading(f"decoder.layers.{n}", 1.0, 5.0, norm, 1e-3, 3.0, 2.0, 0.9, distinct)
              for n, (norm, distinct) in enumerate(((1.0, 0.8), (4.0, 0.4)))]  # fmt: skip
    moves = {0.0: 0.0, 1e-4: 0.02, 1e-3: 0.05, 1e-2: 0.5}
    tries = [FirstStep(rate, 8.0, moved) for rate, moved in moves.items()]
    steps = [StepReading(n, loss, 1e-2, 1.0, layers) for n, loss in ((1, 8.0), (2, 7.9))]
    run = ShortRun(steps, tries, 1e-2, steps)
    made = Diagnosis(PLACEMENTS["sub"], (2,), 1e-2, Bound({}, {}), run, judge(run), [])
    trial = Trial("learned", "quickly", "loss", 1.0, 2.0, 1.9, 3, 4, 5.0)
    assert [*probe.diagnosis_lines([made], [trial])][-1] == f"trial: {trial.text}"
    table = next(probe.side_by_side([made])).splitlines()
    (row,) = (line for line in table if line.startswith("Sub-LN"))
    assert re.split(" {2,}", row)[2:] == ["x0.25", "2 %", "0.002", "4"]


def test_widths_and_depths_are_in_their_columns() -> None:
    changes = {"flat": (3.0, 3.0), "wide": (1.0, 2.0), "top": (1.0, 4.0), "zero": (0.0, 1.0)}
    found = [Coordinate(name, {}, {16: a, 64: b}) for name, (a, b) in changes.items()]
    table, _, *lines = probe.coordinate_lines(found, [16, 64], 3)
    assert table.splitlines()[2].split() == ["wide", "1", "2", "width^0.50"]
    assert lines[0].startswith("No exponent for zero: ")
    assert (
        lines[1].startswith("2 of 4 outputs change")
        and "fastest in top, as width^1.00." in lines[1]
    )
    assert len(lines) == 2 and "suits width 16 is too large at width 64" in lines[1]
    assert (
        "at most in proportion to width^0.2."
        in [*probe.coordinate_lines(found[:1], [16, 64], 3)][-1]
    )
    for each, start in ((found[2], "1 of 10 outputs change"), (found[3], "No exponent for zero")):
        many = [*found[:1] * 5, each, *found[:1] * 4]  # nine rows are shown, without the sixth
        table, _, line = probe.coordinate_lines(many, [16, 64], 3)
        assert each.name not in table and line.startswith(start)
    grown = [
        Growth("sub", "label", "sgd", 1.5, 0.25, 8.0, (2.0, 32.0), (2, 8)),
        Growth("sub", "label", "adam", 0.5, math.nan, 2.0, (math.nan, math.nan), (2, 8)),
    ]
    assert list(probe.growth_lines(grown)) == [
        "measured: change of a label's logit in one step, with 8 layers relative to 2: "
        "x8 [2, 32] under SGD, x2 under Adam"
    ]
    updates = [Update("sub", layers, seed, "label", optimizer, value * 4**seed)
               for layers, value in ((2, 1.0), (8, 8.0)) for seed in (0, 1)
               for optimizer in ("sgd", "adam")]  # fmt: skip
    bounds = {"sub": {"paper": [3.0, 12.0]}, "peri": {}}
    words = [line.split() for text in probe.growth_tables(grown, updates, bounds, [2, 8])
             for line in text.splitlines()]  # fmt: skip
    assert " ".join(words[1]).startswith("Change of a label's logit in one step of SGD, divided")
    assert words[2] == ["layers", "2", "8", "growth", "exponent"]
    assert words[3] == ["Sub-LN", "2", "16", "x8", "1.50±0.25"]
    assert words[-2:] == [["Sub-LN,", "paper", "3", "12", "x4"], ["Peri-LN", "-", "-", "none"]]
