"""A ladder of invented runs with known best rates and laws, and the choice of its cells."""

import csv
import json
import math
import random
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.check_ladder import check_folder
from benchmarks.check_ladder import sum_up as recomputed
from benchmarks.ladders import summary, widening
from magneto.commands import plan
from magneto.commands.ladder import (
    EVALUATION_SHARE,
    OVERHEAD_SECONDS,
    parser,
    read_ladder_options,
    table,
    time_cell,
)
from magneto.config import ConfigError
from magneto.files import DamagedError, write_json
from magneto.lab import ladder as ladders
from magneto.lab.forecast import (
    PLATEAU,
    PRIORS,
    answer,
    compared,
    expected_failures,
    forecast,
    limitations,
    log_ratio,
    trend,
)
from magneto.lab.grid import PLACEMENT, RATE, SEED, read_sweep
from magneto.lab.ladder import (
    LEAST_STEPS,
    Ladder,
    beside,
    collect_ladder,
    fit_budget,
    missing_cells,
    nearest,
    next_cells,
    open_ladder,
    planned,
    run_ladder,
    shape,
)
from magneto.lab.outcome import Scored
from magneto.lab.report.ladder import draw_over_size, table_rows, write_ladder
from magneto.lab.report.plot import Plot, series_of
from magneto.lab.rung import (
    AT_EDGE,
    BETWEEN,
    ONE_SEED,
    add_sensitivity,
    sensitivity,
    sum_up,
    why_no_best_rate,
)
from magneto.lab.update import MeasuredOptimizer, Reading, Update
from magneto.progress import ProgressBars
from magneto.recipe import load_recipe
from tests.commands import refused
from tests.unit.lab.invented import cell, cells

QUIET = ProgressBars(quiet=True)
BASELINE, FIRST = 3.2, 6.0
SMALL = {"data.tokenizer": "bytes", "training.steps": "60", "training.evaluate_every": "0"}
# Of each placement: best rate and loss at width 64, and what a width four times as large makes of
# them; rates from so many times the best one on fail.
TRUTH = {"pre": (8e-3, 2.6, 0.5, 0.96, 12.0), "sub": (5e-3, 2.62, 0.25, 0.99, 40.0)}


def made(sizes: list[int], **more: Any) -> Ladder:
    rows = {PLACEMENT: ["pre", "sub"]}
    whole: dict[str, Any] = {
        "recipe": "causal-lm/tiny", "overrides": SMALL, "axis": "width", "sizes": sizes,
        "target": 1024, "rows": rows, "rates": [1e-3, 3e-3, 1e-2], "seeds": [1, 2, 3], **more,
    }  # fmt: skip
    return Ladder(**whole)


def climbed(folder: Path, sizes: list[int], **more: Any) -> Ladder:
    """Begin a ladder or go on with it, and run what is missing."""
    ladder = open_ladder(folder, made(sizes, **more), lambda new: new)
    assert run_ladder(folder, ladder, 1, QUIET)
    return ladder


def truth(placement: str, width: int) -> tuple[float, float, float]:
    """Return the best rate, its loss, and the first rate that fails."""
    best, loss, rate_ratio, loss_ratio, fails = TRUTH[placement]
    power = math.log(width / 64, 4)
    best *= rate_ratio**power
    return best, loss * loss_ratio**power, best * fails


@pytest.fixture
def invented(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write cells instead of running them; return the names of the cells that were run."""
    ran: list[str] = []

    def describe(place: Path, sweep: Any, report: Any) -> None:
        write_json(place / "rung.json", {
            "metric": "loss", "higher_is_better": False, "baseline": BASELINE,
            "baseline_loss": BASELINE, "adam_eps": 1e-8, "steps": 60,
            "updates": {"pre": [0.5, 0.6], "sub": []},
        })  # fmt: skip

    def run(place: Path, sweep: Any, jobs: int, progress: Any) -> bool:
        width = int(place.name.partition("-")[2])
        for planned_cell in read_sweep(place).cells():
            path = place / "cells" / planned_cell.name / "outcome.json"
            if path.exists():
                continue
            ran.append(f"{width} {planned_cell.name}")
            outcome, probe = invent(width, **planned_cell.values)
            write_json(path, outcome)
            (path.parent / "probe.jsonl").write_text(probe)
            (path.parent / "metrics.jsonl").write_text("")
        return True

    def invent(width: int, **values: Any) -> tuple[dict, str]:
        placement, rate, seed = (values[name] for name in (PLACEMENT, RATE, SEED))
        best, loss, fails = truth(placement, width)
        noise = 0.0008 * random.Random(f"{placement} {width} {seed}").gauss(0, 1)
        found = loss * math.exp(0.01 * math.log(rate / best) ** 2 + noise)
        lost = rate >= fails
        logit, top = 400.0 * (width / 64) ** (1.5 if placement == "pre" else 0.0), width / 64
        logit *= 1 if rate == nearest(best) else 7  # only runs at the best rate are forecast
        layers = [
            {"attention_logit_max": logit, "activation_rms": 3 * top, "update_ratio": 0.01},
            {"attention_logit_max": 1.0, "activation_rms": top, "update_ratio": 0.03},
        ]
        less = [layer | {"activation_rms": top / 2, "update_ratio": 0.01} for layer in layers]
        rows = [{"step": 30, "embedding_gradient_rms": 1e-4 * 64 / width, "layers": layers},
                {"step": 60, "embedding_gradient_rms": 1e-3, "layers": less}]  # fmt: skip
        ended = {"status": "diverged" if lost else "finished", "reason": "the loss is nan"}
        return {
            **ended, "step": 60, "metrics": {} if lost else {"loss": found}, "curve": [[10, FIRST]],
            "diverged_at": 20 if lost else None, "seconds": 2.0, "initial_loss": FIRST,
        }, "".join(json.dumps(row) + "\n" for row in rows)  # fmt: skip

    monkeypatch.setattr(ladders, "describe_rung", describe)
    monkeypatch.setattr(ladders, "run_local", run)
    monkeypatch.setattr(ladders, "prepare_data", lambda *words: None)
    return ran


def test_known_laws_are_recovered_and_cells_are_few(
    tmp_path: Path, invented: list[str], without_rendering: None
) -> None:
    found = collect_ladder(tmp_path, climbed(tmp_path, [64, 128, 256]), "magneto ladder")
    for rung in found["rungs"]:
        for row in TRUTH:
            best, loss, fails = truth(row, rung["size"])
            shown = rung["rows"][row]
            assert shown["best_rate"]["value"] == pytest.approx(best, rel=1e-3), (row, rung["size"])
            assert shown["best_rate"]["low"] <= shown["best_rate"]["high"]
            assert shown["loss"]["value"] == pytest.approx(loss, abs=0.005) and not shown["edge"]
            assert shown["largest_stable"] < fails <= shown["next_failed"]
            assert shown["next_failed"] <= 3.4 * shown["largest_stable"]
            rate = math.sqrt(shown["largest_stable"] * shown["next_failed"])
            assert shown["stable_rate"]["value"] == pytest.approx(rate)
        size = rung["size"] / 64
        values = {"attention_logit": 400 * size**1.5, "top_rms": size, "update": 0.02,
                  "embedding_gradient": 1e-4 / size, "update_to_bound": math.sqrt(0.3)}  # fmt: skip
        known = rung["rows"]["pre"]["measured"]
        assert {name: pair["value"] for name, pair in known.items()} == pytest.approx(values)
        assert known["update_to_bound"]["error"] == pytest.approx(math.log(1.2) / 2)
    rows = found["forecast"]["rows"]
    for row in TRUTH:
        best, loss, _ = truth(row, 1024)
        assert rows[row]["best_rate"]["low"] < best < rows[row]["best_rate"]["high"]
        assert rows[row]["loss"]["low"] < loss < rows[row]["loss"]["high"]
    gap = rows["pre"]["gaps"]["sub"]
    assert gap["low"] > 0 and gap["value"] == pytest.approx(
        math.log(truth("sub", 1024)[1] / truth("pre", 1024)[1]), abs=0.01
    )
    assert rows["pre"]["measured"]["attention_logit"]["exponent"] == pytest.approx(1.5, abs=0.2)
    assert "update_to_bound" not in rows["sub"]["measured"], "no bound is derived for it here"
    breaks = found["troubles"]["pre"][0]  # 400 (width / 64)^1.5 is 1e4 at width 547
    assert (breaks["name"], breaks["before_target"]) == ("attention_logit", True)
    assert breaks["size"] == pytest.approx(547, rel=0.2)
    assert found["answer"][0].startswith(
        "Forecast for width 1024, with 80 % intervals: Pre-LN has the lowest loss, "
    )
    assert "Worse: Sub-LN" in found["answer"][1]
    assert found["answer"][2].startswith("Best learning rates of the others: Sub-LN 0.00")
    assert found["answer"][3].startswith("Largest stable learning rates: Pre-LN ")
    assert [entry["size"] for entry in found["held_out"]].count(128) == 7
    trivial = [entry["trivial_rates"] for entry in found["held_out"] if "trivial_rates" in entry]
    assert trivial and all(way["off"] >= 1 for ways in trivial for way in ways.values())
    (pair,) = [entry for entry in found["held_out"]
               if entry["what"] == "gap" and entry["size"] == 128]  # fmt: skip
    assert (pair["row"], pair["against"], pair["holds"]) == ("sub", "pre", True)
    assert pair["measured"] == pytest.approx(truth("sub", 128)[1] / truth("pre", 128)[1], rel=0.01)
    assert all(entry["from"] == [64] for entry in found["held_out"] if entry["size"] == 128)
    # The whole grid from the smallest to the largest rate that was tried, with all seeds.
    tried = {name.split("learning_rate=")[1].split(",")[0] for name in invented}
    assert len(invented) < 0.6 * 3 * 2 * 3 * len(tried)
    page = write_ladder(found, tmp_path).read_text()
    assert "First expected failure" in page and "measured-attention-logit-over-size" in page
    text = (tmp_path / "report.md").read_text()
    for part in (
        "| Pre-LN, best rate | 0.008 (0.008 to 0.008) | 0.00566 (0.00566 to 0.00566) | 0.004 (",
        "0.03; 0.1 fails | 0.0313 (0.00739 to 0.132) | -0.27 (-0.81 to 0.27) |",
        "| Sub-LN, loss relative to Pre-LN | +0.8 % | +2.3 % | +4.0 % | +7.0 % (+5.3 % to +8.7 %)"
        " | +2.2 % (+1.5 % to +2.9 %) per e-fold growth",
        "the gap grows with size", "than the baseline's by 22% (Pre-LN), 19% (Sub-LN).",
        "| 128 from 64: Pre-LN, best rate | 0.004 (0.00194 to 0.00825) | 0.00566 | yes | 0.008 | "
        "0.004 |", "Sub-LN, loss relative to Pre-LN | 1.008 (0.984 to 1.032) | 1.023 | yes | – |",
        "| Sub-LN, update divided by the theory's bound | – | – | – | – | – |",
        "lay in the forecast's 80 % interval. The median error of the best rate was a factor of "
        "1.21 for the forecast, 1.71 for", "runs: 70; 0.04 hours", "because attention logits",
        "Sub-LN: every measured quantity is expected to stay within its limit up to width 1024.",
        "The quantity nearest to its limit is the relative update of weights 0.02 (",
    ):  # fmt: skip
        assert part in text, part
    assert "Sub-LN           0.005: 2.621  0.0025: 2.606" in table(found)
    with (tmp_path / "report.csv").open() as file:
        every = list(csv.DictReader(file))
    (gap, later) = (row for row in every if row["what"] == "gap" and row["size"] in ("128", "1024"))
    assert float(later["value"]) == pytest.approx(math.exp(rows["pre"]["gaps"]["sub"]["value"]))
    assert float(gap["value"]) == pytest.approx(
        truth("sub", 128)[1] / truth("pre", 128)[1], rel=0.01
    )
    both = [row for row in every if row["what"] in ("loss", "best_rate")]
    assert {row["kind"] for row in both} == {"measured", "forecast"}
    for row in both:
        low, value, high = (float(row[name]) for name in ("low", "value", "high"))
        assert 0 < low <= value <= high < 100 * low, row
    (part,) = (row for row in every if row["what"] == "update_to_bound"
               and (row["row"], row["size"]) == ("pre", "128"))  # fmt: skip
    ends = [math.log(float(part[end]) / math.sqrt(0.3)) for end in ("low", "value", "high")]
    half = 1.2816 * math.log(1.2) / 2
    assert ends == pytest.approx([-half, 0, half], abs=1e-4), "an 80 % interval"
    write_json(tmp_path / "forecast.json", found)
    checked = check_folder(tmp_path)
    assert not checked.wrong and checked.count > 200
    damaged = json.loads(json.dumps(found))
    damaged["forecast"]["rows"]["sub"]["best_rate"]["high"] *= 1.01
    write_json(tmp_path / "forecast.json", damaged)
    assert len(check_folder(tmp_path).wrong) == 1


def test_a_prediction_is_checked_after_seeds_were_added(
    tmp_path: Path, invented: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    counts = []
    for seeds in ([1, 2], [1, 2, 3]):
        found = collect_ladder(tmp_path, climbed(tmp_path, [64, 128], seeds=seeds), "")
        write_json(tmp_path / "forecast.json", found)
        checked = check_folder(tmp_path)
        assert not checked.wrong
        counts.append(checked.count)
    said = capsys.readouterr().out
    assert said.startswith("width-128: runs were added to smaller sizes") and said.count("\n") == 1
    assert counts[1] < counts[0], "points that have changed are not counted as checked"
    found["forecast"]["rows"]["sub"]["loss"]["points"][0] = (64, 2.0, 0.01)
    write_json(tmp_path / "forecast.json", found)
    wrong = check_folder(tmp_path).wrong
    assert {line.split(":")[0].rsplit(", ", 1)[1] for line in wrong} >= {"points", "value"}


def test_a_prediction_that_is_not_of_the_runs_is_found(tmp_path: Path, invented: list[str]) -> None:
    ladder = climbed(tmp_path, [64, 128])
    write_json(tmp_path / "forecast.json", collect_ladder(tmp_path, ladder, ""))
    kept = ladder.forecast_file(tmp_path, 128)
    prediction = json.loads(kept.read_text())
    prediction["rows"]["sub"]["loss"]["points"][0][1] *= 1.01
    write_json(kept, prediction)
    wrong = check_folder(tmp_path).wrong
    assert any(line.startswith("width-128, sub, loss, points") for line in wrong)


def test_the_line_of_a_law_goes_through_what_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plot, "finish", lambda plot: plot)
    sizes, exponents = [64, 256], {"pre": -0.25, "sub": 0.5}
    rungs = [{"size": size, "rows": {row: {"loss": 2 * (size / 1024) ** exponent}
                                     for row, exponent in exponents.items()}}
             for size in sizes]  # fmt: skip
    laws = {row: {"loss": {"value": 2.0, "low": 1.9, "high": 2.1, "exponent": exponent}}
            for row, exponent in exponents.items()}  # fmt: skip
    found = {"axis": "width", "sizes": sizes, "target": 1024, "rungs": rungs,
             "forecast": {"rows": laws}}  # fmt: skip
    plot: Any = draw_over_size(found, series_of([*exponents], {}), "loss", "loss")
    dashed = [line.get_data() for line in plot.main.lines if list(line.get_xdata()) == [64, 1024]]
    assert [list(heights) for _, heights in dashed] == [
        pytest.approx([rungs[0]["rows"][row]["loss"], 2.0]) for row in exponents
    ]


def test_a_rung_is_forecast_once_before_its_training(tmp_path: Path, invented: list[str]) -> None:
    ladder = climbed(tmp_path, [64, 128], target=2048)
    kept = ladder.forecast_file(tmp_path, 128)
    first = min(p.stat().st_mtime_ns for p in tmp_path.glob("rungs/width-128/cells/*/outcome.json"))
    assert kept.stat().st_mtime_ns < first
    before = kept.read_bytes()
    saved = json.loads(before)
    assert saved["priors"]["loss"]["scatter"] == PRIORS["loss"].scatter and saved["commit"]
    count = len(invented)
    assert not missing_cells(tmp_path, ladder, 128)
    assert collect_ladder(tmp_path, ladder, "")["complete"]
    for more in ({"seeds": [1, 2, 3, 4]}, {"sizes": [64, 128, 256]}):
        assert not collect_ladder(tmp_path, replace(ladder, **more), "")["complete"], more
    # Neither is a rung forecast anew, nor one by a smaller rung that is added later.
    found = collect_ladder(tmp_path, climbed(tmp_path, [32, 64, 96, 128], seeds=[1, 2, 3, 4]), "")
    assert kept.read_bytes() == before and len(set(invented)) == len(invented) > count
    assert not ladder.forecast_file(tmp_path, 64).exists() and found["sizes"] == [32, 64, 96, 128]
    assert found["target"] == found["forecast"]["size"] == 1024, "another one than before"
    assert {entry["size"] for entry in found["held_out"]} == {96, 128}
    for message, more in (("another ladder: its rates", {"rates": [1e-3], "seeds": [1, 2, 3, 4]}),
                       ("its seeds differ", {"seeds": [4]})):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            climbed(tmp_path, [32, 64, 96, 128], **more)
    # Results that the list of runs lacks are taken up.
    path, rates = tmp_path / "rungs/width-64/sweep.json", found["rungs"][1]["rows"]["pre"]
    sweep = json.loads(path.read_text())
    write_json(path, sweep | {"further": sweep["further"][:5]})
    again = climbed(tmp_path, [32, 64, 96, 128], seeds=[1, 2, 3, 4])
    found = collect_ladder(tmp_path, again, "")["rungs"][1]["rows"]["pre"]
    assert found["best_rate"] == rates["best_rate"]


# Invented changes by what is read and by the optimizer.
SIZES: dict[tuple[Reading, MeasuredOptimizer], float] = {
    ("label", "sgd"): 1.0, ("label", "adam"): 3.0, ("output", "sgd"): 7.0, ("output", "adam"): 9.0,
}  # fmt: skip


def test_the_first_update_of_one_layer_is_near_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is on the change of a label's logit by SGD, of either sign."""
    small = {"model.layers": 1, "model.width": 32, "model.ffn_width": 128}
    recipe = load_recipe("image-classification/tiny", {"model.placement": "pre", **small})
    updates = ladders.update_to_bound(recipe)
    assert len(updates) == 3 and all(0.1 < each < 1 for each in updates)
    assert not ladders.update_to_bound(
        replace(recipe, model=replace(recipe.model, placement="peri"))
    )
    measured = [Update("pre", 1, seed, *how, (seed - 1.5) * size)
                for seed in (1, 2) for how, size in SIZES.items()]  # fmt: skip
    asked: list[Any] = []
    monkeypatch.setattr(
        ladders, "measure_growth", lambda *shape, **how: asked.append((shape, how)) or measured
    )
    monkeypatch.setattr(ladders, "bounds_over", lambda *_: {"paper": [2.0], "first_order": [5.0]})
    wide = replace(recipe, model=recipe.model.at_width(96))
    assert ladders.update_to_bound(wide) == [0.25, 0.25]
    ((shape,), how) = asked[0]
    assert (shape.width, how["stack"], how["depths"]) == (96, "encoder", [1])


def scored(table: dict[tuple[float, int], float | str | None]) -> list[Scored]:
    return [cell("pre", *key, loss, FIRST, BASELINE) for key, loss in table.items()]


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        ({}, {(1e-3, 1), (1e-2, 1)}),
        # The best rate and its neighbours get every seed; then one looks for the stable rate.
        ({(1e-3, 1): 2.6, (1e-2, 1): 2.5},
         {(3e-3, 1), (3e-3, 2), (1e-2, 2), (3e-2, 1), (3e-2, 2)}),
        ({(3e-3, 1): 2.6, (3e-3, 2): 2.6, (1e-2, 1): 2.5, (1e-2, 2): 2.5, (3e-2, 1): 2.7,
          (3e-2, 2): 2.7, (1e-3, 1): 2.9}, {(1e-1, 1)}),
        # Nothing has learned: towards the lower loss, and not below what diverges at once.
        ({(1e-3, 1): 3.3, (1e-2, 1): 3.25}, {(3e-2, 1)}),
        ({(1e-3, 1): None, (1e-2, 1): None}, {(3e-4, 1)}),
        # A gap below the first rate that fails is closed.
        ({(3e-3, 1): 2.6, (3e-3, 2): 2.6, (1e-2, 1): 2.5, (1e-2, 2): 2.5, (3e-2, 1): 2.7,
          (3e-2, 2): 2.7, (3e-1, 1): None, (1e-3, 1): 2.9}, {(1e-1, 1)}),
        # A run without a result is run again.
        ({(1e-3, 1): "missing", (1e-2, 1): 2.5}, {(1e-3, 1)}),
        # A neighbour that diverged gets no further seed; one that did not learn has a loss.
        ({(3e-3, 1): 3.3, (1e-2, 1): 2.5, (3e-2, 1): None, (1e-3, 1): 3.3},
         {(3e-3, 2), (1e-2, 2)}),
    ],
)  # fmt: skip
def test_next_cells(table: dict, wanted: set) -> None:
    assert set(next_cells(scored(table), [1e-3, 1e-2], [1, 2])) == wanted


def test_the_rung_below_places_rates_and_says_where_to_look_for_the_stable_one() -> None:
    start, seeds = [1e-3, 3e-3, 1e-2], [1, 2]
    given = next_cells([], start, seeds, stable=1e-1, every_seed=True)
    assert set(given) == {(rate, seed) for rate in start for seed in seeds}
    done = scored({(rate, seed): 2.5 + abs(math.log(rate / 3e-3)) / 9 for rate, seed in given})
    assert next_cells(done, start, seeds, stable=1e-1, every_seed=True) == [(1e-1, 1), (3e-1, 1)]
    assert (nearest(2e-3), nearest(1.2e-2), nearest(5e-3)) == (3e-3, 1e-2, 3e-3)
    assert (beside(1e-2, 1), beside(1e-2, -1), beside(2e-3, -1)) == (3e-2, 3e-3, 1e-3)


def test_shapes_keep_the_recipes_heads_and_ratio() -> None:
    given = {"model.width": 128, "model.heads": 4, "model.ffn_width": 384,
             "model.key_value_heads": 2}  # fmt: skip
    assert shape("causal-lm/tiny", given, "width", 256) == {
        "model.width": 256, "model.heads": 8, "model.ffn_width": 768, "model.key_value_heads": 4,
    }  # fmt: skip
    assert shape("causal-lm/tiny", {}, "depth", 12) == {"model.layers": 12}
    assert shape("translation/tiny", {}, "depth", 9) == {
        "model.encoder_layers": 9, "model.decoder_layers": 9,
    }  # fmt: skip
    # 12 heads fit into the widths of the rows, and not into the recipe's.
    wide = made([2, 4], axis="depth", overrides={**SMALL, "model.heads": "12"},
                rows={"model.width": ["96", "192"]})  # fmt: skip
    assert wide.first_recipe(2).model.width == 96


def test_only_the_best_rate_over_the_standard_width_is_expected_to_fall_as_one_over_it() -> None:
    rows = {PLACEMENT: ["pre"], "model.parametrization": ["standard", "mup"]}
    mup = {"model.base_width": "64", "model.tie_embeddings": "false"}
    widths = made([64, 128], rows=rows, overrides={**SMALL, **mup})
    assert widths.rate_priors() == {
        "pre,parametrization=standard": "best_rate_by_width", "pre,parametrization=mup": "best_rate"
    }  # fmt: skip
    sgd = made([64, 128], rows={PLACEMENT: ["pre"]},
               overrides={**SMALL, "training.optimizer": "sgd"})  # fmt: skip
    assert sgd.rate_priors() == {"pre": "best_rate"}
    depths = made([2, 4], axis="depth").rate_priors()
    assert depths == {"pre": "best_rate", "sub": "best_rate"}


def test_a_budget_buys_steps() -> None:
    timed = {64: (0.01, 1.0), 128: (0.04, 1.0)}
    ladder = made([64, 128])
    training = ladder.first_recipe(64).training
    cells = {size: planned(ladder, size) for size in timed}
    assert cells == {64: 2 * (3 + 3 * 2 + 3), 128: 2 * (3 * 3 + 3)}
    enough = sum(cells[s] * (60 * step + more) for s, (step, more) in timed.items())
    rich, scarce, poor = (replace(ladder, capacity=part * enough) for part in (2, 0.905, 0.5))
    assert fit_budget(rich, training, timed).fitted["training.steps"] == 60
    fitted = fit_budget(scarce, training, timed)
    # Each kind of cell runs 24 times: 48 s besides the steps, and 1.2 s for each step.
    assert LEAST_STEPS <= fitted.fitted["training.steps"] == int((0.905 * 120 - 48) / 1.2) == 50
    assert fitted.seconds == {"64": 1.5, "128": 3.0}
    sweep = replace(fitted, race=True).sweep(64, [])
    assert (sweep.overrides["training.steps"], sweep.race, sweep.probed) == (50, True, True)
    warmup = load_recipe("causal-lm/tiny").training.warmup_steps
    assert fitted.fitted["training.warmup_steps"] == round(warmup * 50 / 60) > 0
    fewer = fit_budget(poor, training, timed, fewer_seeds=True)
    assert (fewer.seeds, fewer.fitted["training.steps"]) == ([1], 60)
    assert "of the recipe's 60 steps" in fitted.notes[0]
    again = replace(fitted, capacity=poor.capacity)
    begun = fit_budget(again, again.first_recipe(64).training, timed)
    assert begun.fitted == fitted.fitted, "steps do not change within a ladder"
    with pytest.raises(ConfigError, match="--budget is too short"):
        fit_budget(poor, training, timed)
    assert fit_budget(rich, replace(training, steps=8), timed).fitted["training.steps"] == 8
    epochs = fit_budget(rich, replace(training, steps=99, epochs=2.0), timed).fitted
    assert epochs["training.steps"] == 99 and epochs["training.epochs"] is None


@pytest.mark.parametrize(("limit", "batches"), [(1, 1), (None, 2)])
def test_a_cell_is_timed_with_the_batches_that_are_scored(
    limit: int | None, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tried(recipe: Any, task: Any, report: ProgressBars) -> dict[str, float]:
        task.prepare(report)
        return {"seconds_per_step": 3.0}

    monkeypatch.setattr(plan, "try_steps", tried)
    changes = {"training.evaluate_limit": limit}
    recipe = load_recipe("image-classification/tiny", changes)
    found = time_cell(recipe, 1, QUIET)
    assert found == (3.0, pytest.approx(OVERHEAD_SECONDS + EVALUATION_SHARE * 3.0 * batches))


def test_what_the_budget_can_not_pay_is_left_out_until_it_is_larger(
    tmp_path: Path, invented: list[str]
) -> None:
    seconds = {"64": 4.0, "128": 4.0}  # an estimate: each takes 2 s
    ladder = climbed(tmp_path, [64, 128], capacity=40.0, seconds=seconds)
    # Cells of 2 s; the rungs cost the same, so the first one leaves half to the second.
    assert [name.split()[0] for name in invented] == ["64"] * 10 + ["128"] * 10
    lines = collect_ladder(tmp_path, ladder, "")["limitations"]
    assert any("The budget was too short" in line for line in lines)
    climbed(tmp_path, [64, 128], capacity=60.0, seconds=seconds)
    assert len(invented) == 30
    # Nothing has run: a quarter of 40 s pays 10 runs of 1 s, and all of it 13 of 3 s.
    wanted = [{RATE: rate, SEED: seed} for rate in range(10) for seed in (2, 1, 3)]
    unequal = made([64, 128], capacity=40.0, seconds={"64": 1.0, "128": 3.0})
    for size, seeds in ((64, [1] * 10), (128, [1] * 10 + [2] * 3)):
        paid = ladders.afforded(tmp_path / "new", unequal, size, wanted)
        assert [cell[SEED] for cell in paid] == seeds
    # A size that was added without a budget has no duration yet.
    climbed(tmp_path, [64, 128, 256])
    timed = {**seconds, "256": 2.0}
    again = made([64, 128, 256], capacity=60.0)
    assert open_ladder(tmp_path, again, lambda new: replace(new, seconds=timed)).seconds == timed


def test_the_evidence_says_how_often_intervals_held_and_by_what_they_must_widen() -> None:
    """Of five values four lie within 1.5 half-widths, on either side."""
    apart = (0.1, -0.5, 0.9, -1.5, 4.0)
    rows: list[dict[str, Any]] = [
        {"what": "best_rate", "from": "64 128", "value": 1.0, "low": 0.5, "high": 2.0,
         "measured": 2.0**far, "holds": abs(far) <= 1, "off": 2 ** abs(far), "off_below": 3.0,
         "off_inverse": 4.0, "priors": "earlier"} for far in apart
    ]  # fmt: skip
    assert widening(rows) == pytest.approx(1.5)
    table = summary([*rows, rows[2] | {"priors": "today's"}])
    assert "| best rate | two or more | earlier | 5 | 3 | 1.50 | 1.866 | 3.00 | 4.00 |" in table
    assert "| best rate | two or more | today's | 1 | 1 | 0.90 | 1.866 | 3.00 | 4.00 |" in table


def test_what_can_not_be_told_is_said(tmp_path: Path, invented: list[str],
                                      monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setitem(TRUTH, "sub", (5e-3, (1 - PLATEAU / 2) * BASELINE, 1.0, 1.0, 1.1))
    ladder = climbed(tmp_path, [64, 128], seeds=[1])
    text = " ".join(collect_ladder(tmp_path, ladder, "")["limitations"])
    for words in ("fewer than three sizes (2), exponents", "8 times the largest trained size",
                  "One seed gives no measure of noise", "within 10% of the trivial baseline's",
                  "loss: Sub-LN at 64, Sub-LN at 128. Such losses", "Sub-LN at 64, Sub-LN at 128, "
                  "because a run failed or is missing at a rate next"):  # fmt: skip
        assert words in text, words


def test_options_of_a_ladder_with_a_budget() -> None:
    words = """causal-lm/tiny --widths 64,32 --target 128 --budget 10m --seeds 3,1 --race
        --lrs 1e-2,1e-3 --grid model.layers=2,3 --placements sub"""
    found = read_ladder_options(*parser().parse_with_overrides(words.split()))
    assert found.overrides == {
        "training.evaluate_every": 0, "training.evaluate_limit": 16, "data.tokenizer": "bytes",
    }  # fmt: skip
    assert (found.axis, found.sizes, found.target, found.race) == ("width", [32, 64], 128, True)
    assert (found.rates, found.seeds, len(found.notes)) == ([1e-3, 1e-2], [1, 3], 1)
    assert found.rows == {"model.layers": ["2", "3"], PLACEMENT: ["sub"]}
    own = [*words.split(), "--grid", "data.tokenizer=bpe"]
    assert not read_ladder_options(*parser().parse_with_overrides(own)).notes


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--widths", "32,64"], "--target"),
        (["--target", "128"], "either --widths or --depths"),
        (["--widths", "32,64", "--target", "64"], "above the largest trained size (64)"),
        (["--widths", "32,48", "--target", "128"], "other sizes: heads would be 1.5"),
        (["--widths", "32,64", "--target", "128", "--budget", "soon"], "--budget: must be"),
        (["--depths", "2,4", "--target", "8", "--model.layers", "9"], "--model.layers"),
        (["--depths", "2,4", "--target", "8", "--grid", "model.layers=2,4"], "--grid model.layers"),
        (["--widths", "32,64", "--target", "128", "--grid", "model.heads=2,4"], "--widths sets"),
        (["--widths", "32,64", "--target", "128", "--budget", "1m", "--grid", "training.steps=8,9"],
         "--grid training.steps: --budget sets this field"),
        (["--widths", "32,64", "--target", "128", "--grid", "data.max_length=8,16"],
         "different data"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture, words: list[str], answer: str
) -> None:
    assert answer in refused(capsys, "ladder", "causal-lm/tiny", "--out", tmp_path / "x", *words)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("table", "seeds", "best", "edge"),
    [
        # A budget ended before the neighbours had all seeds: the first one decides.
        ({1e-3: [3.0], 3e-3: [2.6], 1e-2: [2.5, 2.52], 3e-2: [2.7], 1e-1: [7.5]}, 1, None, ""),
        ({1e-3: [3.0] * 2, 3e-3: [2.6] * 2, 1e-2: [2.5, 2.52], 3e-2: [2.7] * 2}, 2, None, ""),
        # Two rates above the best one a run diverged, and one rate above that a run learned.
        ({1e-3: [3.0] * 2, 3e-3: [2.5] * 2, 1e-2: [2.6, None], 3e-2: [2.6] * 2}, 2, 3e-3,
         "stability"),
        ({3e-3: [2.6, 2.6], 1e-2: [2.5, 2.5], 3e-2: [2.7, None], 1e-1: [2.9]}, 2, 1e-2,
         "stability"),
        # A run did not learn at the next rate, although the mean loss is lower there.
        ({1e-3: [7.2] * 2, 3e-3: [7.0] * 2, 1e-2: [6.0, 7.8], 3e-2: [7.8]}, 2, 3e-3, "stability"),
        ({1e-3: [3.0] * 2, 3e-3: [2.7] * 2, 1e-2: [2.5] * 2}, 2, 1e-2, "largest"),
        # Much better than both neighbours. A parabola through the losses would be negative
        # at its minimum. A loss of 0 has no log.
        ({1e-3: [1.0] * 2, 3e-3: [1e-3] * 2, 1e-2: [0.2] * 2}, 2, 3.40955407e-3, ""),
        ({1e-3: [1.0] * 2, 3e-3: [0.0] * 2, 1e-2: [0.2] * 2}, 2, 3.23638647e-3, ""),
    ],
)  # fmt: skip
def test_a_best_rate_is_stable_and_its_loss_is_positive(
    table: dict[float, list[float | None]], seeds: int, best: float | None, edge: str
) -> None:
    shown = sum_up(cells("pre", table))
    assert shown is not None and (shown["seeds"], shown["edge"]) == (seeds, edge)
    assert (shown["loss"]["error"] == ONE_SEED) == (seeds == 1)
    if best is None:
        assert 3e-3 < shown["best_rate"]["value"] < 3e-2 and shown["best_tried"] == 1e-2
    else:
        assert shown["best_rate"]["value"] == pytest.approx(best)
    if edge:
        assert shown["best_rate"]["error"] == (BETWEEN if edge == "stability" else AT_EDGE)
    if edge == "stability":
        assert (shown["largest_stable"], shown["next_failed"]) == (
            best,
            pytest.approx(3.2 * best, rel=0.1),
        )
    assert shown["loss"]["value"] > 0
    again = recomputed([asdict(one) for one in cells("pre", table)])
    for name in ("best_rate", "loss"):
        assert {part: shown[name][part] for part in again[name]} == pytest.approx(again[name])


@pytest.mark.parametrize("below", [[6.0, 7.8], [7.6], [None, 7.0]])
def test_no_parabola_goes_through_a_failed_rate_below_the_best_one(below: list[Any]) -> None:
    """A run failed there although the mean is lower; a seed is missing; a run diverged."""
    table = {1e-3: below, 3e-3: [7.0] * 2, 1e-2: [7.2] * 2, 3e-2: [7.8]}
    shown = sum_up(cells("pre", table))
    assert shown is not None and (shown["best_tried"], shown["edge"]) == (3e-3, "stability")
    assert (shown["largest_stable"], shown["next_failed"]) == (1e-2, 3e-2)
    again = recomputed([asdict(one) for one in cells("pre", table)])
    assert shown["best_rate"] == pytest.approx(again["best_rate"])


def test_missing_runs_are_not_trained_by_an_edited_recipe(
    tmp_path: Path, invented: list[str]
) -> None:
    recipe = tmp_path / "mine.yaml"
    load_recipe("causal-lm/tiny", {RATE: 1e-3}).save(recipe)
    climbed(tmp_path / "out", [64, 128], recipe=str(recipe))
    recipe.write_text(recipe.read_text().replace("weight_decay: 0", "weight_decay: 9"))
    climbed(tmp_path / "out", [64, 128], recipe=str(recipe))
    with pytest.raises(ConfigError, match="weight_decay"):
        climbed(tmp_path / "out", [64, 128, 256], recipe=str(recipe))


def test_a_ladder_tells_no_places(tmp_path: Path, invented: list[str]) -> None:
    recipe, data = tmp_path / "mine.yaml", {"data.source": f"{tmp_path}/book.txt"}
    load_recipe("causal-lm/tiny", {RATE: 1e-3}).save(recipe)
    ladder = climbed(tmp_path / "out", [64], recipe=str(recipe), overrides=SMALL | data)
    found = collect_ladder(tmp_path / "out", ladder, f"magneto ladder {recipe}")
    assert (found["recipe"], found["command"]) == ("mine.yaml", "magneto ladder mine.yaml")
    assert found["overrides"]["data.source"] == "book.txt" and str(tmp_path) not in str(found)


def test_a_ladder_is_begun_once_by_two_machines(tmp_path: Path, invented: list[str]) -> None:
    def prepare(ladder: Ladder) -> Ladder:
        open_ladder(tmp_path / "out", made([64, 128]), lambda new: replace(new, notes=["first"]))
        return replace(ladder, notes=["second"])

    assert open_ladder(tmp_path / "out", made([64, 128]), prepare).notes == ["first"]


def test_a_size_that_is_not_finished_ends_the_ladder_for_now(
    tmp_path: Path, invented: list[str], monkeypatch: pytest.MonkeyPatch, without_rendering: None
) -> None:
    ladder = made([64, 128])
    with monkeypatch.context() as stopped:
        stopped.setattr(ladders, "run_local", lambda *_: False)
        assert not run_ladder(tmp_path, ladder, 1, QUIET)
    assert [rung.name for rung in tmp_path.glob("rungs/*")] == ["width-64"]
    assert run_ladder(tmp_path, ladder, 1, QUIET)
    own = {*tmp_path.glob("rungs/width-128/cells/*=sub,*/outcome.json")}
    (kept,) = (path for path in own if path.parent.name.endswith("=0.003,seed=1"))
    for path in own - {kept}:
        path.unlink()
    found = collect_ladder(tmp_path, ladder, "")
    assert "Some runs of Sub-LN at 128 are missing" in " ".join(found["limitations"])
    kept.unlink()
    rich = replace(ladder, capacity=1e6, seconds={"64": 2.0, "128": 2.0})
    for one in (ladder, rich):
        found = collect_ladder(tmp_path, one, "")
        assert re.search(r"Sub-LN .* is unfinished +no forecast$", table(found))
        assert "because it is unfinished at width 128." in " ".join(found["limitations"])
        assert "budget" not in " ".join(found["limitations"]) and not found["complete"]
        assert {entry["row"] for entry in found["held_out"]} == {"pre"}
    write_ladder(found, tmp_path)
    assert "The ladder is incomplete" in (tmp_path / "report.md").read_text()
    for path in tmp_path.glob("rungs/width-*/cells/*/outcome.json"):
        path.unlink()
    found = collect_ladder(tmp_path, ladder, "")
    assert "no row has a best rate" in found["answer"][0] and not found["held_out"]
    write_ladder(found, tmp_path)
    assert "baseline's by" not in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (None, "is unfinished"),
        ({"waiting": 1, "left_out": 1}, "is unfinished"),
        ({"waiting": 0, "left_out": 1}, "did not learn at the rates that the budget allowed"),
        ({"waiting": 0, "left_out": 0}, "did not learn"),
    ],
)
def test_a_row_that_may_still_learn_is_not_said_to_have_failed(part: Any, reason: str) -> None:
    assert why_no_best_rate(part) == reason


def test_a_task_without_a_loss_is_refused(tmp_path: Path, invented: list[str]) -> None:
    ladder = climbed(tmp_path, [64])
    scored = {"metric": "accuracy", "higher_is_better": True, "baseline": 0.1}
    edited(tmp_path / "rungs" / "width-64" / "rung.json", **scored)
    for path in tmp_path.glob("rungs/width-64/cells/*/outcome.json"):
        edited(path, metrics={"accuracy": 0.9})
    with pytest.raises(ConfigError, match="the task's metrics contain no 'loss'"):
        missing_cells(tmp_path, ladder, 64)


def edited(path: Path, **changes: Any) -> None:
    write_json(path, json.loads(path.read_text()) | changes)


def test_rows_are_ranked_by_paired_losses_and_a_contradiction_is_said() -> None:
    """Seeds differ by far more than rows, and Sub-LN is ahead of Pre-LN in each pair."""
    rungs = []
    for size, pre, sub in ((32, 1.2, 0.8), (64, 0.6, 0.5), (128, 0.3, 0.26)):
        rows = {}
        for row, loss in (("pre", pre), ("sub", sub)):
            table = {1e-3: [7.0, 7.0], 3e-3: [loss, loss + 0.4], 1e-2: [7.0, 7.0]}
            rows[row] = {**(sum_up(cells(row, table)) or {}), "measured": {}}
        rungs.append({"size": size, "rows": rows, "adam_eps": 1e-8, "baseline_loss": None})
    keys = {"pre": "best_rate", "sub": "best_rate_by_width"}
    prediction = forecast(rungs, 512, keys)
    assert prediction["rows"]["pre"]["loss"]["value"] < prediction["rows"]["sub"]["loss"]["value"]
    lines = answer("width", 512, prediction, {"pre": [], "sub": []})
    assert "Sub-LN has the lowest loss" in lines[0] and "Possibly as good: Pre-LN" in lines[1]
    assert "disagree on which loss is lower" in " ".join(
        limitations("width", 512, rungs, prediction)
    )
    rows = prediction["rows"]
    rows["pre"]["loss"] = {**rows["sub"]["loss"], "value": 1.1 * rows["sub"]["loss"]["value"]}
    for low, claim in ((-0.1, "Possibly as good: Pre-LN"), (0.05, "Worse: Pre-LN")):
        rows["sub"]["gaps"]["pre"] |= {"low": low, "value": 0.1, "high": 0.3}
        assert claim in answer("width", 512, prediction, {"pre": [], "sub": []})[1]
    rungs[0]["rows"]["sub"] = {"cells": []}
    text = " ".join(limitations("width", 512, rungs, forecast(rungs, 512, keys)))
    assert "Sub-LN has no forecast, because it did not learn at width 32. " in text
    assert "stable rate of Pre-LN is unknown, because no rate failed" in text


def test_a_forecast_holds_inside_its_interval() -> None:
    law = {"low": 1.0, "value": 2.0, "high": 4.0}
    held = {truth: compared(law, truth)["holds"] for truth in (0.5, 1.0, 4.0, 5.0)}
    assert held == {0.5: False, 1.0: True, 4.0: True, 5.0: False}
    assert compared(law, 0.5)["off"] == pytest.approx(4)


def test_failures_are_expected_where_a_law_reaches_its_limit() -> None:
    """At width 256: a limit below, one above, one that is never reached, and a margin of rates."""
    values = {"attention_logit": (4e4, 1), "embedding_gradient": (1e-9, -1), "update": (0.05, -1),
              "top_rms": (2e5, -1), "update_to_bound": (9, 1), "rate": (4, -1)}  # fmt: skip
    known = {name: {"value": value, "low": value / 2, "high": 3 * value, "exponent": exponent}
             for name, (value, exponent) in values.items()}  # fmt: skip
    margin, best = known.pop("rate"), {"value": 1e-3, "low": 5e-4, "high": 2e-3, "exponent": -0.5}
    stable = {"value": 4e-3, "low": 4e-3, "high": 6e-3, "exponent": -1.5}
    laws = {"measured": known, "best_rate": best, "stable_rate": stable}
    rungs = [{"size": size, "adam_eps": eps} for size, eps in ((32, 4e-9), (64, 2e-9))]
    found = expected_failures(rungs, laws, 256)
    assert [(one["name"], one["size"], one["before_target"]) for one in found] == [
        ("top_rms", 32, True), ("attention_logit", pytest.approx(64), True),
        ("embedding_gradient", pytest.approx(128), True), ("rate", pytest.approx(1024), False),
        ("update", None, False),
    ]  # fmt: skip
    assert margin.items() <= found[3].items()
    for low, high, words in ((1, 2, "grows"), (-2, -1, "shrinks"), (-1, 1, "no clear trend")):
        assert words in trend({"exponent_low": low, "exponent_high": high})


def test_a_loss_above_the_initial_one_counts_as_the_initial_one() -> None:
    """A diverged run counts with it too; runs of other seeds and of rates outside do not count."""
    runs = ((1.0, None, 1), (1e-3, 2.0, 1), (1e-2, 9.0, 1), (3e-3, 0.1, 2), (1e-5, 0.5, 1))
    cells = [{"seed": seed, "status": "finished" if loss else "diverged", "initial_loss": 3.0,
              "loss": loss, "learning_rate": rate} for rate, loss, seed in runs]  # fmt: skip
    # One decade from 2 to 3 and two decades at 3.
    assert sensitivity(cells, 1, 1e-3, 1.0) == pytest.approx((2.5 + 2 * 3) / 3 - 2)


def test_a_row_that_learned_at_no_rate_has_no_sensitivity() -> None:
    """Its losses hardly depend on the rate, so it would seem to be the least sensitive one."""
    learned = [[1e-4, 3.1], [1e-3, 3.0], [1e-2, 2.0]]
    stuck = [[1e-3, 3.3], [1e-2, 3.3], [1e-1, 3.3]]
    rungs = []
    for losses in (learned, stuck):
        runs = [asdict(run) for run in scored({(rate, 1): loss for rate, loss in losses})]
        found = {"best_rate": {}} if losses is learned else {}
        rungs.append({"size": len(rungs), "rows": {"pre": {"cells": runs, **found}}})
    add_sensitivity(rungs)
    assert rungs[0]["rows"]["pre"]["sensitivity"] == pytest.approx(0.5)
    assert rungs[0]["rows"]["pre"]["sensitivity_over"] == [1e-3, 1e-2], "tested at both sizes"
    assert "sensitivity" not in rungs[1]["rows"]["pre"]


def test_runs_that_a_budget_allowed_before_a_stop_are_run_after_it(
    tmp_path: Path, invented: list[str]
) -> None:
    """Three runs took the size's budget; without its runs, Sub-LN would seem not to have learned"""
    more: dict[str, Any] = {"capacity": 6.0, "seconds": {"64": 0.1, "128": 0.1}}
    climbed(tmp_path, [64], **more)
    for run in sorted(tmp_path.glob("rungs/width-64/cells/*"))[3:]:
        shutil.rmtree(run)
    found = collect_ladder(tmp_path, climbed(tmp_path, [64, 128], **more), "")
    runs = [cell for row in found["rungs"][0]["rows"].values() for cell in row["cells"]]
    assert {run["status"] for run in runs} <= {"finished", "diverged"}
    assert [*found["forecast"]["rows"]] == ["pre", "sub"]


def test_the_losses_of_rows_are_compared_over_common_seeds() -> None:
    """Seed 1 is far worse than seed 0, and a budget left Sub-LN only seed 0."""
    pre = sum_up(cells("pre", {1e-3: [7.0] * 2, 3e-3: [2.0, 3.0], 1e-2: [7.0] * 2}))
    sub = sum_up(cells("sub", {1e-3: [7.0], 3e-3: [2.0], 1e-2: [7.0]}))
    assert pre and sub and (pre["seeds"], sub["seeds"]) == (2, 1)
    assert log_ratio(pre, sub) == pytest.approx(0, abs=0.01)
    assert log_ratio(sub, pre) == pytest.approx(-log_ratio(pre, sub))


def test_an_unequal_number_of_seeds_is_checked(tmp_path: Path, invented: list[str]) -> None:
    more: dict[str, Any] = {"capacity": 42.0, "seconds": {"64": 4.0, "128": 4.0}}
    found = collect_ladder(tmp_path, climbed(tmp_path, [64, 128], **more), "")
    pre, sub = (found["rungs"][0]["rows"][row] for row in ("pre", "sub"))
    assert (pre["seeds"], sub["seeds"]) == (2, 1)
    gap = found["forecast"]["rows"]["pre"]["gaps"]["sub"]["points"][0][1]
    assert gap != pytest.approx(math.log(sub["loss"]["value"] / pre["loss"]["value"]), abs=1e-6)
    write_json(tmp_path / "forecast.json", found)
    assert not check_folder(tmp_path).wrong


def test_a_smaller_seed_that_is_added_comes_last(
    tmp_path: Path, invented: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget leaves the new seed only some runs, of one row. Seeds still pair."""
    monkeypatch.setitem(TRUTH, "pre", (8e-3, 2.6, 0.25, 0.96, 12.0))  # three rates suffice
    seconds = {"64": 4.0, "128": 4.0}
    climbed(tmp_path, [64, 128], seeds=[2, 3], capacity=200.0, seconds=seconds)
    count = len(invented)
    capacity = 2.0 * count + 6
    ladder = climbed(tmp_path, [64, 128], seeds=[1, 2, 3], capacity=capacity, seconds=seconds)
    assert ladder.seeds == [2, 3, 1] and len(invented) == count + 3
    found = collect_ladder(tmp_path, ladder, "")
    pre, sub = (found["rungs"][1]["rows"][row] for row in ("pre", "sub"))
    assert (pre["seeds"], sub["seeds"]) == (3, 2)
    for row in (pre, sub):
        known = {run["seed"]: run["loss"] for run in row["cells"]
                 if run["learning_rate"] == row["best_tried"]}  # fmt: skip
        assert row["seed_losses"] == [known[seed] for seed in (2, 3, 1)[: row["seeds"]]]
    write_json(tmp_path / "forecast.json", found)
    assert not check_folder(tmp_path).wrong


def test_data_are_checked_if_a_larger_budget_allows_more_runs(
    tmp_path: Path, invented: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, checked = {"64": 4.0, "128": 4.0}, []
    monkeypatch.setattr(ladders, "prepare_data", lambda place, sweep: checked.append(place.name))
    for capacity, count in ((40.0, 0), (40.0, 0), (60.0, 1)):
        climbed(tmp_path, [64, 128], capacity=capacity, seconds=seconds)
        assert len(checked) == count, capacity


def test_another_ladder_is_refused_by_the_names_of_its_fields(
    tmp_path: Path, invented: list[str]
) -> None:
    climbed(tmp_path, [64], capacity=99.0, seconds={"64": 1.0})
    other = {name: value for name, value in SMALL.items() if name != "data.tokenizer"}
    with pytest.raises(ConfigError, match=r"its budget, fields \(data.tokenizer\) differ"):
        climbed(tmp_path, [64], overrides=other)


def test_a_damaged_run_can_be_trained_again(tmp_path: Path, invented: list[str]) -> None:
    climbed(tmp_path, [64])
    path = next(tmp_path.glob("rungs/width-64/cells/*/outcome.json"))
    whole = path.read_bytes()
    path.write_bytes(whole[:40])
    with pytest.raises(DamagedError, match=r"remove .* to train this run again") as caught:
        climbed(tmp_path, [64])
    assert str(path.parent) in str(caught.value).split("; ")[1]
    shutil.rmtree(path.parent)
    climbed(tmp_path, [64])
    assert path.read_bytes() == whole


def test_a_number_without_an_interval_has_none_in_the_table(
    tmp_path: Path, invented: list[str]
) -> None:
    """With one seed, the error of the loss is assumed, and others are unknown."""
    found = collect_ladder(tmp_path, climbed(tmp_path, [64, 128], seeds=[1]), "")
    ends = {row["what"]: (row.get("low"), row.get("high")) for row in table_rows(found)
            if (row["kind"], row["size"], row["row"]) == ("measured", 64, "pre")}  # fmt: skip
    assert {what for what, pair in ends.items() if pair == (None, None)} == {
        "sensitivity", "attention_logit", "top_rms", "embedding_gradient", "update",
    }  # fmt: skip
    low, high = ends["loss"]
    assert low and high and low < high
