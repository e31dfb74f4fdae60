"""What is concluded from a grid, on grids whose answer is known."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.recomputed import gaps_of, width_of
from magneto.config import ConfigError
from magneto.lab.sweep.answer import answer
from magneto.lab.sweep.cells import Cell, Sweep
from magneto.lab.sweep.compare import data_of, judges_of, refuse_several_metrics
from magneto.lab.sweep.judged import Judge, Scored, score_cell, verdict
from magneto.lab.sweep.summary import Summary, summarise
from magneto.lab.sweep.sweep import cell_directory
from magneto.recipe import Recipe
from magneto.theory.placement import PLACEMENTS

BASELINE = 7.5


def status(score: float | None) -> str:
    if score is None:
        return "diverged"
    return "did not learn" if score == BASELINE else "finished"


def cells(
    placement: str, table: dict[float, list[float | None]], first: float = 8.0
) -> list[Scored]:
    """A score per seed at each rate; None diverged, a score at the baseline did not learn."""
    return [
        Scored(
            placement, rate, seed, status(score),
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
    post = cells("post", {rate: [None, None] for rate in (1e-3, 1e-2, 1e-1)})
    everything = PRE + SUB + post
    summaries = [summarise(everything, name, False) for name in ("pre", "sub", "post")]
    text = " ".join(answer(summaries, False, "loss"))
    assert "Sub-LN is best here: loss 3.1 ± 1.3 at learning rate 0.01." in text
    assert "Beyond noise: Pre-LN (1 ± 0.61 higher)." in text
    assert text.startswith("Sub-LN is best here")
    assert "Did not learn at any rate: Post-LN." in text
    assert (
        "Largest stable learning rate, by the 2 seeds that ran at every rate: Sub-LN 0.1 (the "
        "largest tried); Pre-LN 0.001 (1 of 2 failed at 0.01, nothing between was tried). "
        "So few seeds can't tell one largest stable rate from another."
    ) in text
    assert "Pre-LN in 3 of 6" in text


def test_answer_says_how_far_behind_each_is() -> None:
    near, far = cells("pre", {1e-3: [3.1, 3.3]}), cells("post", {1e-3: [9.0, 9.001]})
    sub = cells("sub", {1e-3: [3.0, 3.001]})
    known = [summarise(sub + near + far, name, False) for name in ("post", "pre", "sub")]
    text = " ".join(answer(known, False, "loss"))
    # Of three pairs the first two are judged at 1.7 and 2.5 %, the last one at 5 %.
    assert (
        "Within noise of it: Pre-LN (0.2 ± 1.3 higher). Beyond noise: Post-LN (6 ± 0.0054 higher)."
        in text
    )
    assert "Sub-LN has the best score, others are within noise of it: loss 3" in text
    single = [*known[:1], summarise(cells("pre", {1e-3: [4.0]}), "pre", False), *known[2:]]
    assert "Too few seeds to tell: Pre-LN (1 higher)." in " ".join(answer(single, False, "loss"))


def test_equal_scores_of_two_seeds_show_no_spread() -> None:
    """0.70 twice and 0.71 twice: a gap of which nobody can tell whether it is noise."""
    both = cells("pre", {1e-3: [0.70, 0.70]}) + cells("sub", {1e-3: [0.71, 0.71]})
    words = answer([summarise(both, name, True) for name in ("pre", "sub")], True, "accuracy")
    assert words[0] == "Sub-LN has the best score: accuracy 0.71 at learning rate 0.001."
    assert words[1] == "Too few seeds to tell: Pre-LN (0.01 lower)."
    pair = frozenset("ab")
    assert gaps_of([{"a": [0.70] * 2, "b": [0.71] * 2}])[pair][1] is width_of([0.7, 0.7]) is None
    assert gaps_of([{"a": [0.70] * 2, "b": [0.70] * 2}])[pair] == (0, 0)


def test_who_is_within_noise_of_another_is_not_called_best() -> None:
    near = cells("pre", {1e-3: [4.0, 4.2, 4.1]}) + cells("sub", {1e-3: [4.0, 4.1, 4.1]})
    words = answer([summarise(near, name, False) for name in ("pre", "sub")], False, "loss")
    assert words[0].startswith("Sub-LN has the best score, others are within noise of it: loss 4.0")
    assert words[1].startswith("Within noise of it: Pre-LN (0.033 ±")


def test_equal_numbers_of_diverged_runs_are_told_once() -> None:
    table: dict[float, list[float | None]] = {1e-3: [3.0, 3.1], 1.0: [None, None]}
    both = cells("pre", table) + cells("sub", table)
    summaries = [summarise(both, name, False) for name in ("pre", "sub")]
    assert "Runs diverged: 2 of 4 each." in answer(summaries, False, "loss")


def test_one_seed_is_not_told_from_noise() -> None:
    single = cells("pre", {1e-3: [4.0]}) + cells("sub", {1e-3: [3.0]})
    summaries = [summarise(single, name, False) for name in ("pre", "sub")]
    words = answer(summaries, False, "loss")
    assert words[0] == "Not decided: with one seed no difference can be told from noise."
    assert words[1].startswith("Sub-LN has the best score: loss 3 at learning rate 0.001.")
    assert "is best here" not in " ".join(words)


def test_what_was_compared_with_nothing_is_not_called_best() -> None:
    alone = summarise(cells("sub", {1e-3: [3.0, 3.1]}), "sub", False)
    words = answer([alone], False, "loss")
    assert words[0].startswith("Sub-LN has its best score here: loss 3.05 ±")
    stuck = [BASELINE, BASELINE]
    both = cells("sub", {1e-3: [3.0, 3.1]}) + cells("post", {1e-3: [*stuck]})
    words = answer([summarise(both, name, False) for name in ("sub", "post")], False, "loss")
    assert words[0].startswith("Sub-LN alone has a rate at which all seeds learned: loss 3.05 ±")
    both += [Scored("post", 1e-2, 0, "missing")]
    words = answer([summarise(both, name, False) for name in ("sub", "post")], False, "loss")
    assert words[0].startswith("Sub-LN has the best score so far: loss 3.05 ±")
    assert words[1] == "1 of 5 runs have no result yet."
    assert "Did not learn at any rate" not in " ".join(words)


def test_the_best_rate_is_that_of_the_best_mean() -> None:
    """One lucky seed at 0.001 has the lowest loss of all."""
    lucky = cells("sub", {1e-3: [1.0, 5.0], 1e-2: [2.0, 2.0]})
    assert summarise(lucky, "sub", False).best_learning_rate == 1e-2


def test_rows_are_judged_as_stable_by_the_same_seeds() -> None:
    """Seeds that were added near one row's best rate fail there; the other row has none of them."""
    table: dict[float, list[float | None]] = {1e-3: [4.0], 1e-2: [3.5], 1e-1: [None]}
    more = [
        Scored("sub", 1e-2, seed, status(score), score=score, loss=score, initial_loss=8.0)
        for seed, score in enumerate([3.4, BASELINE, 3.6], 1)
    ]
    grid = [*cells("pre", table), *cells("sub", table), *more]
    pre, sub = (summarise(grid, name, False) for name in ("pre", "sub"))
    apart = [*cells("pre", table), *more]  # rows that have no seed in common
    assert summarise(apart, "sub", False).next_rate is None
    assert pre.largest_stable_rate == sub.largest_stable_rate == 1e-2
    assert pre.stable_seeds == sub.stable_seeds == [0]
    assert (sub.next_rate, sub.failed_there, sub.others_failed) == (1e-1, (1, 1), (1, 3))
    text = " ".join(answer([pre, sub], False, "loss"))
    assert "Largest stable learning rate, by the one seed that ran at every rate: Pre-LN" in text
    assert "Of further seeds' runs up to that rate failed: Sub-LN in 1 of 3." in text
    assert "So few seeds can't tell" in text
    # A seed that happens to be at all of one row's rates is not at all of the other's.
    whole = [*cells("pre", table), *cells("sub", {rate: [3.0, None] for rate in table})]
    assert summarise(whole, "sub", False).largest_stable_rate == 1e-1


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_equal_rows_are_seldom_told_apart(seeds: int) -> None:
    """Eleven rows of one distribution; one by one at 95 %, 25 to 53 % of reports told some apart.

    Of 60 reports, 5 % and three standard deviations are 8.
    """
    generator = np.random.default_rng(seeds)
    told = 0
    for scores in generator.normal(6.0, 0.1, (60, 11, seeds)):
        rows = [summary_of(*row) for row in zip(PLACEMENTS, scores, strict=True)]
        text = " ".join(answer(rows, False, "loss"))
        told += "Beyond noise" in text or "is best here" in text
    assert told <= 8


def test_a_difference_of_several_sigmas_is_found() -> None:
    """One row of eleven is six standard deviations ahead, with five seeds each."""
    generator = np.random.default_rng(0)
    best = 0
    for scores in generator.normal(6.0, 0.1, (20, 11, 5)):
        scores[7] -= 0.6
        rows = [summary_of(*row) for row in zip(PLACEMENTS, scores, strict=True)]
        words = answer(rows, False, "loss")
        best += words[0].startswith("OLMo 2 is best here")
        assert "Beyond noise" in " ".join(words)
    assert best >= 12


def summary_of(name: str, scores: np.ndarray) -> Summary:
    return summarise(cells(name, {1e-3: scores.tolist()}), name, False)


def test_nothing_finished() -> None:
    post = summarise(cells("post", {1.0: [None]}), "post", False)
    assert post.score is None and post.sensitivity is None
    words = answer([post], False, "loss")
    assert words == ["Nothing learned at any of these learning rates.",
                     "Runs diverged: Post-LN in 1 of 1."]  # fmt: skip
    some = summarise(cells("pre", {1e-3: [4.0, None], 1e-2: [BASELINE, 3.0]}), "pre", False)
    words = answer([some], False, "loss")
    assert words[0] == "At no rate did all seeds learn."
    assert words[-1] == "Runs diverged: Pre-LN in 1 of 4."
    assert asdict(post)["best_learning_rate"] is None


def test_a_run_without_a_result_is_none_that_learned() -> None:
    """One seed of three is there at 0.01: its rate is not best, and nobody knows it is stable."""
    sub = cells("sub", {1e-3: [4.0, 4.1, 4.2], 1e-2: [3.0]})
    sub += [Scored("sub", 1e-2, seed, "missing") for seed in (1, 2)]
    found = summarise(sub, "sub", False)
    assert (found.best_learning_rate, found.largest_stable_rate, found.missing) == (1e-3, 1e-3, 2)
    assert (found.next_rate, found.failed_there, found.sensitivity) == (
        1e-2, (0, 1), pytest.approx(1 / 6)
    )  # fmt: skip
    words = answer([found], False, "loss")
    assert words[1] == "2 of 6 runs have no result yet."
    assert "Sub-LN 0.001 (at 0.01 not every run has a result yet)" in " ".join(words)
    none = [summarise([Scored("sub", 1e-2, 1, "missing")], "sub", False)]
    assert answer(none, False, "loss") == [
        "There is no result yet.", "1 of 1 runs have no result yet."]  # fmt: skip


def test_rows_of_different_data_are_not_ranked() -> None:
    rows = [f"{place},tokenizer={kind}" for place in ("pre", "sub") for kind in ("bytes", "bpe")]
    found = [
        summarise(cells(row, {1e-3: [2.0 + number, 2.01 + number]}), row, False)
        for number, row in enumerate(rows)
    ]
    data = {row: row.partition(",")[2] for row in rows}
    text = " ".join(answer(found, False, "loss", data))
    said = "Scores on different data cannot be ranked against each other "
    assert text.startswith(f"{said}(tokenizer=bytes; tokenizer=bpe): each row")
    assert "Pre-LN, tokenizer=bytes is best here: loss 2.005" in text
    assert "Pre-LN, tokenizer=bpe is best here: loss 3.005" in text
    assert text.count("Beyond noise: Sub-LN") == 2
    assert "different data" not in " ".join(answer(found, False, "loss"))


def test_each_data_has_a_baseline_of_its_own(small: Callable[..., Recipe], tmp_path: Path) -> None:
    small().save(tmp_path / "mine.yaml")
    rows = {"model.placement": ["pre"], "training.learning_rate": [1e-3], "seed": [1, 2]}
    grid = {"data.tokenizer": ["bytes", "bpe"], **rows}
    sweep = Sweep(str(tmp_path / "mine.yaml"), {"data.vocab_size": 300}, grid)
    judges = judges_of(sweep)
    assert list(judges) == ["pre,tokenizer=bytes", "pre,tokenizer=bpe"]
    one, other = (judge.baseline or 0.0 for judge in judges.values())
    assert one > 0 and other > 0 and one != other
    assert data_of(sweep)["pre,tokenizer=bpe"] == "tokenizer=bpe"
    assert data_of(replace(sweep, grid=rows)) == {}
    varied = {"data.augmentation.flip": [0, 0.5], "data.image_augmentation.flip": [0, 0.5]}
    values = {name: flips[0] for name, flips in varied.items()}
    assert Cell({**values, "data.max_length": 4}).data == "max_length=4"  # flips are of training
    refuse_several_metrics(sweep)


def test_rows_of_different_metrics_are_refused() -> None:
    grid = {"data.glue": ["cola", "sst2"], "training.learning_rate": [1e-3], "seed": [1]}
    with pytest.raises(ConfigError, match="glue=cola by matthews, glue=sst2 by accuracy"):
        refuse_several_metrics(Sweep("text-classification/small", {}, grid))


def ended(loss: float | None, curve: float = 3.0) -> dict:
    return {"status": "finished", "reason": "", "metrics": {"loss": loss}, "curve": [[1, curve]]}


@pytest.mark.parametrize(
    ("loss", "first", "baseline", "expected"),
    [
        (3.0, 8.0, 7.5, "finished"),
        (3.0, None, None, "finished"),
        (9.0, 8.0, 7.5, "diverged"),
        (float("nan"), None, None, "diverged"),
        (None, 8.0, 7.5, "diverged"),
        (7.5, 8.0, 7.5, "did not learn"),
        (7.36, 8.0, 7.5, "did not learn"),
        (7.34, 8.0, 7.5, "finished"),
        (7.34, 8.0, None, "finished"),
    ],
)
def test_what_became_of_a_run(
    loss: float | None, first: float | None, baseline: float | None, expected: str
) -> None:
    """A loss has to be 2 % of the baseline below it; without one, below the beginning."""
    found, reason = verdict(ended(loss), Judge("loss", False, baseline), first)
    assert found == expected
    assert bool(reason) == (expected != "finished")


def test_a_run_whose_loss_is_no_number_or_where_it_began_has_not_learned() -> None:
    found = ended(math.nan) | {"metrics": {"loss": math.nan, "accuracy": 0.9}, "curve": []}
    assert verdict(found, Judge("accuracy", True, 0.5), 8.0)[0] == "diverged"
    assert verdict(ended(8.0), Judge("loss", False, 9.0), 8.0)[0] == "diverged"


@pytest.mark.parametrize(
    ("score", "baseline", "learned"),
    [(0.52, 0.5, True), (0.505, 0.5, False), (0.03, 0.0, True), (0.01, 0.0, False),
     (4.0, 1.5, True), (3.0, 1.5, False)],
)  # fmt: skip
def test_where_higher_is_better_the_margin_is_of_what_is_left(
    score: float, baseline: float, learned: bool
) -> None:
    assert Judge("accuracy", True, baseline).beats_baseline(score) == learned


def test_what_did_not_learn_is_not_stable() -> None:
    """Post-LN sits at the loss of token frequencies at every rate."""
    post = cells("post", {1e-3: [BASELINE] * 2, 1e-2: [BASELINE] * 2, 1e-1: [BASELINE] * 2})
    sub = cells("sub", {1e-3: [4.0, 4.1], 1e-2: [BASELINE, 3.9], 1e-1: [3.0, 3.1]})
    none, some = (summarise(post + sub, name, False) for name in ("post", "sub"))
    assert none.largest_stable_rate is None and none.sensitivity is None and none.score is None
    assert (some.largest_stable_rate, some.next_rate, some.failed_there) == (1e-3, 1e-2, (1, 2))
    assert some.best_learning_rate == 1e-1 and some.best_beyond_stable
    words = answer([none, some], False, "loss")
    assert words[0].startswith("Sub-LN alone has a rate at which all seeds learned")
    assert words[1] == "Did not learn at any rate: Post-LN."
    assert words[2] == "Finished without learning: Sub-LN in 1 of 6 runs."
    assert "Sub-LN has its best score at 0.1, above its largest stable rate." in words


def test_sensitivity_is_capped_at_the_loss_at_initialisation() -> None:
    """One run that blew up before its first logged row does not raise the others' cap."""
    table = cells("sub", {1e-3: [4.0], 1e-2: [None]}, first=6.0)
    overfit = [replace(cell, loss=9.0) if cell.score else cell for cell in table]
    assert summarise(overfit, "sub", False).sensitivity == 0
    blown = [c if c.score else Scored("sub", 1e-2, 0, "diverged", initial_loss=6.0) for c in table]
    assert summarise(blown, "sub", False).sensitivity == pytest.approx((0 + 2.0) / 2)


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
    judge = Judge("accuracy", True, 0.5)
    assert score_cell(tmp_path, cell, judge).status == status
    assert score_cell(tmp_path, cell, Judge("loss", False)).status == (
        "finished" if validation < 0.7 else "diverged"
    )
