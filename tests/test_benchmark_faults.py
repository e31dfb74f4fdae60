"""Seeded faults before the real command line: no traceback, no hang, no other result."""

import os
import random
import signal
from pathlib import Path

import pytest

from benchmarks.faults.cases import all_cases, misspelt_recipe, odd_value
from benchmarks.faults.place import make_data, make_place
from benchmarks.faults.table import observe, page
from benchmarks.faults.watch import Seen, closed, watch


def findings(cases: list, place: Path) -> list[tuple[str, str, list[str]]]:
    return [(c.name, s.finding, s.output) for c, s in observe(cases, place, False) if s.finding]


def test_slips_and_odd_values_are_refused_in_lines(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MAGNETO_CACHE", str(tmp_path / "cache"))
    make_data(tmp_path)
    draws = [random.Random(f"short {seed}") for seed in range(8)]
    cases = [misspelt_recipe(draw) for draw in draws]
    cases += [case for case in map(odd_value, draws) if "training.device" in case.name]
    assert len(cases) >= 8 and not findings(cases, tmp_path)


def test_what_is_a_finding() -> None:
    assert Seen(1, ["Traceback (most recent call last):"]).finding == "traceback"
    assert Seen(0, ["Traceback (most recent call last):"], killed=True).finding == "traceback"
    assert Seen(2, ["?"]).finding == "no word about it"
    assert Seen(None, []).finding == "it hangs" and Seen(-6, []).finding == "exit code -6"
    assert not Seen(2, ["magneto: no such file"]).finding and not Seen(None, [], True).finding
    assert Seen(2, ["read", "magneto: no such file", "magneto: more"]).line == (
        "magneto: no such file"
    )


def test_the_page_has_every_case(tmp_path: Path) -> None:
    case = misspelt_recipe(random.Random(1))
    text = page([(case, Seen(2, ["magneto: a | b"])), (case, Seen(1, ["Traceback (most"]))])
    assert "| misspelt recipe | 2 | 1 | 0 | 1 |" in text and "`magneto: a \\| b`" in text
    assert "**traceback**" in text


def test_the_same_cases_come_each_time() -> None:
    first, second = ([case.name for case in all_cases(3)] for _ in range(2))
    assert first == second and len(set(first)) > len(first) // 2
    assert len(list(all_cases(24))) >= 200


def test_a_child_that_hangs_is_ended() -> None:
    seen = watch(["recipes"], signal.pause, seconds=0.2)
    assert seen.finding == "it hangs"


def test_a_child_whose_streams_are_closed_ends_as_one() -> None:
    """It must not go on in the parent's program, and clear its folders."""
    parent = os.getpid()
    try:
        seen = watch(["recipes"], closed(0, 1, 2))
    finally:
        if os.getpid() != parent:
            os._exit(77)
    assert seen.code == 0, seen


@pytest.mark.slow
def test_two_hundred_faults(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MAGNETO_CACHE", str(tmp_path / "cache"))
    make_place(tmp_path)
    assert not findings(list(all_cases(24)), tmp_path)
