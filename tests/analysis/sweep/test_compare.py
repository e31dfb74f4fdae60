"""What is concluded from a grid, on grids whose answer is known."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest

from magneto.analysis.sweep.compare import Scored, answer, learnt, score_cell, summarise
from magneto.analysis.sweep.sweep import Cell, cell_directory


def cells(
    placement: str, table: dict[float, list[float | None]], first: float = 8.0
) -> list[Scored]:
    """A score per seed at each rate; None diverged."""
    return [
        Scored(
            placement, rate, seed, "diverged" if score is None else "finished",
            score=score, loss=score, initial_loss=first,
        )
        for rate, scores in table.items()
        for seed, score in enumerate(scores)
    ]  # fmt: skip


PRE = cells("pre", {1e-3: [4.0, 4.2], 1e-2: [3.9, None], 1e-1: [None, None]})
SUB = cells("sub", {1e-3: [4.5, 4.5], 1e-2: [3.0, 3.2], 1e-1: [7.0, 7.0]})


def test_best_rate_needs_every_seed() -> None:
    pre, sub = (summarise(PRE + SUB, name, False) for name in ("pre", "sub"))
    assert (pre.best_learning_rate, pre.largest_stable_rate) == (1e-3, 1e-3)
    assert (sub.best_learning_rate, sub.largest_stable_rate) == (1e-2, 1e-1)
    assert (pre.finished, pre.diverged) == (3, 3)
    assert sub.score == pytest.approx(3.1)
    assert sub.interval == pytest.approx(12.71 * 0.1 * math.sqrt(2) / math.sqrt(2), rel=1e-3)


def test_stable_is_up_to_the_first_rate_that_is_not() -> None:
    lucky = cells("post", {1e-3: [4.0], 1e-2: [None], 1e-1: [6.2]})
    assert summarise(lucky, "post", False).largest_stable_rate == 1e-3


def test_sensitivity_by_hand() -> None:
    """Seed 0 of pre: losses 4.0, 3.9, 8 (capped), best 3.9; seed 1: 4.2, 8, 8, best 4.2."""
    pre = summarise(PRE, "pre", False)
    seeds = ((0.1 + 0 + 4.1) / 3, (0 + 3.8 + 3.8) / 3)
    assert pre.sensitivity == pytest.approx(sum(seeds) / 2)


def test_higher_may_be_better() -> None:
    assert summarise(SUB, "sub", True).best_learning_rate == 1e-1


def test_answer_names_noise_and_failure() -> None:
    post = cells("post", {1e-3: [None, None]})
    everything = PRE + SUB + post
    summaries = [summarise(everything, name, False) for name in ("pre", "sub", "post")]
    text = " ".join(answer(summaries, False, "loss"))
    assert text.startswith("Sub-LN is best here: loss 3.1 ± 1.3 at learning rate 0.01.")
    assert "Within noise of it: Pre-LN (1 higher)." in text
    assert "At no rate did every seed finish: Post-LN." in text
    assert "Largest stable learning rate, 0.1: Sub-LN." in text
    assert "Pre-LN in 3 of 6" in text


def test_answer_says_how_far_behind_each_is() -> None:
    near, far = cells("pre", {1e-3: [3.1, 3.3]}), cells("post", {1e-3: [9.0, 9.001]})
    sub = cells("sub", {1e-3: [3.0, 3.001]})
    known = [summarise(sub + near + far, name, False) for name in ("post", "pre", "sub")]
    text = " ".join(answer(known, False, "loss"))
    assert "Within noise of it: Pre-LN (0.2 higher). Beyond noise: Post-LN (6 higher)." in text
    single = [*known[:1], summarise(cells("pre", {1e-3: [4.0]}), "pre", False), *known[2:]]
    assert "Behind it: Pre-LN (1 higher)." in " ".join(answer(single, False, "loss"))


def test_equal_numbers_of_diverged_runs_are_told_once() -> None:
    table: dict[float, list[float | None]] = {1e-3: [3.0, 3.1], 1.0: [None, None]}
    both = cells("pre", table) + cells("sub", table)
    summaries = [summarise(both, name, False) for name in ("pre", "sub")]
    assert "Runs diverged: 2 of 4 each." in answer(summaries, False, "loss")


def test_one_seed_is_not_told_from_noise() -> None:
    single = cells("pre", {1e-3: [4.0]}) + cells("sub", {1e-3: [3.0]})
    summaries = [summarise(single, name, False) for name in ("pre", "sub")]
    assert "no difference here can be told from noise" in " ".join(answer(summaries, False, "loss"))


def test_nothing_finished() -> None:
    post = summarise(cells("post", {1.0: [None]}), "post", False)
    assert post.score is None and post.sensitivity == pytest.approx(0)
    assert "No placement finished" in answer([post], False, "loss")[0]
    assert asdict(post)["best_learning_rate"] is None


def test_ending_above_the_first_loss_is_not_finishing() -> None:
    assert learnt(3.0, 3.0, 8.0) and learnt(0.9, None, None)
    assert not learnt(9.0, 9.0, 8.0)
    assert not learnt(float("nan"), None, None) and not learnt(None, 1.0, 2.0)


@pytest.mark.parametrize(
    ("last", "validation", "status"),
    [(0.1, 2.0, "finished"), (2.0, 0.5, "finished"), (2.0, 2.0, "diverged")],
)
def test_overfitting_is_no_divergence(
    last: float, validation: float, status: str, tmp_path: Path
) -> None:
    """Of a classifier; where the loss is the score, it has to be below the beginning."""
    cell = Cell({"model.placement": "sub", "training.learning_rate": 1e-3, "seed": 1})
    cell_directory(tmp_path, cell).mkdir(parents=True)
    content = {
        "status": "finished", "reason": "", "diverged_at": None, "seconds": 1.0, "step": 20,
        "metrics": {"accuracy": 0.8, "loss": validation}, "curve": [[10, 0.7], [20, last]],
    }  # fmt: skip
    (cell_directory(tmp_path, cell) / "outcome.json").write_text(json.dumps(content))
    assert score_cell(tmp_path, cell, "accuracy").status == status
    assert score_cell(tmp_path, cell, "loss").status == (
        "finished" if validation < 0.7 else "diverged"
    )
