"""`magneto bound`: values, tables and mistakes."""

from math import log, sqrt

import pytest

from tests.commands import answer, printed


def bound(capsys: pytest.CaptureFixture[str], line: str) -> dict:
    return answer(capsys, "bound", *line.split())


def test_json_tells_what_was_computed(capsys: pytest.CaptureFixture[str]) -> None:
    """The values are those of the page, or computed by hand if each stack has its own scales."""
    made = bound(capsys, "--encoder-layers 6 --decoder-layers 6 --cross-gain 1")
    assert made["bound"] == made["forms"]["paper"] == pytest.approx(5.5970, abs=5e-4)
    words = "--encoder-layers 6 --decoder-layers 6 --cross-gain 1 --cross-attention paper"
    first = bound(capsys, words)
    assert first["cross_attention"] == "paper" and first["passed_on"] != made["passed_on"]
    made = bound(capsys, "--encoder-layers 6 --decoder-layers 12 --placement sub")
    assert set(made["forms"]) == {"paper", "first_order", "telescoped"}
    assert (made["encoder_layers"], made["decoder_layers"]) == (6, 12)
    assert made["bound"] == made["decoder"] + made["passed_on"] * made["encoder"]
    # Each stack's gain is of its own depth and of the other's.
    assert made["scales"]["encoder"]["v"] == pytest.approx(sqrt(log(3 * 12) * log(2 * 6) / 3))
    assert made["depths"][1]["layers"] == {"encoder": 12, "decoder": 24}
    assert made["growth_exponent"]["paper"] < 0 and made["cross_attention"] == "second"
    made = bound(capsys, "--encoder-layers 1 --decoder-layers 1 --v 2/1,3,1 --w 1")
    assert (made["scales"]["encoder"]["v"], made["scales"]["decoder"]["v"]) == (2, [1, 3, 1])
    assert made["growth_exponent"]["paper"] is None and len(made["depths"]) == 1
    both = bound(capsys, "--encoder-layers 1 --decoder-layers 1 --v 2 --w 1")["scales"]
    assert both["encoder"]["v"] == both["decoder"]["v"] == 2
    # D = 11, sum of steps 14, 1 + 9/1 + 1/10; cross 9/11 of it. D = 8, sum of steps 10, 1 + 4/4.
    expected = {"decoder": 14 / 11 * 10.1, "passed_on": 9 / 11 * 10.1, "encoder": 10 / 8 * 2}
    assert {name: made[name] for name in expected} == pytest.approx(expected)


def test_table_over_depths(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "bound", "--placement", "pre", "--layers", "6").splitlines()
    assert lines[0].startswith("Pre-LN: bound on the first model update")
    assert lines[2].split() == ["layers", "v", "w", "paper", "first_order", "telescoped"]
    cells = {line.split()[0]: line.split()[1:] for line in lines[3:10]}
    assert list(cells) == ["6", "12", "24", "48", "96", "growth", "exponent"]
    assert cells["6"] == ["1.0000", "1.0000", "8.0398", "3.8333", "4.3603"]
    assert cells["48"][2] == "12.2727" and cells["growth"] == ["x1.70", "x1.04", "x2.22"]
    out = printed(capsys, "bound", "--layers", "1", "--v", "1,2", "--w", "1,3")
    assert "1..2" in out and "growth" not in out
