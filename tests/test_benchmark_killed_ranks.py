"""A short form of the benchmark of killed ranks: every example once, the losses of one process."""

import json
from pathlib import Path
from random import Random

import pytest

from benchmarks.killed_chain import BATCH, Chain
from benchmarks.killed_ranks import counts, first_steps, main


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("strategy", "ranks", "restarts"),
    [("ddp", "2 1", "1"), ("fsdp", "4 2", ""), ("hybrid", "4 2 1", "")],
)
def test_a_killed_rank_costs_some_steps_and_no_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, ranks: str, restarts: str
) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])
    words = ["--strategies", strategy, "--ranks", *ranks.split(), "--restarts", *restarts.split()]
    main([*words, "--seeds", "3", "--name", "check", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "check.json").read_text())["rows"]
    assert [row["kills"] for row in rows] == [len(ranks.split()) - 1, *map(int, restarts.split())]
    for row in rows:
        assert (row["seen_once"], row["missing"], row["seen_again"]) == (480, 0, 0)
        assert row["steps_repeated"] > 0, "a kill that lost nothing was none"
        assert row["differences"]["loss"] < 1e-5 and row["differences"]["weights"] < 1e-4
        assert len(row["seconds"]) == row["kills"]


def test_where_attempts_went_on_and_what_was_seen(tmp_path: Path) -> None:
    chain = Chain("ddp", (2, 1), 0, tmp_path, Random(1))
    chain.output.write_text(
        "1,234 parameters on 2 x cpu, ddp\nstep 7\ngoing on from runs/x, step 5\n"
        "1,234 parameters on 1 x cpu, none\n"
    )
    assert first_steps(chain) == [0, 5]
    chain.notes.mkdir()
    examples = list(range(8 * BATCH))

    def note(name: str, first: int, last: int, columns: slice) -> None:
        steps = [
            examples[step * BATCH : (step + 1) * BATCH][columns] for step in range(first, last)
        ]
        lines = [" ".join(map(str, numbers)) for numbers in steps]
        (chain.notes / name).write_text("\n".join(lines) + "\n")

    note("0.0-0-11", 0, 7, slice(0, 4))
    note("0.0-1-12", 0, 6, slice(4, 8))
    note("1.0-0-13", 5, 8, slice(0, 8))
    once = {"seen_once": 64, "missing": 0, "seen_again": 0, "steps_repeated": 2}
    assert counts(chain, len(examples)) == once
    note("1.0-0-13", 6, 9, slice(0, 8))  # a step left out
    assert counts(chain, len(examples))["missing"] == BATCH
    note("1.0-0-13", 4, 7, slice(0, 8))  # one taken again
    found = counts(chain, len(examples))
    assert (found["seen_again"], found["missing"]) == (BATCH, BATCH)
