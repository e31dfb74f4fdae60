"""`magneto bound`, as a user calls it."""

import json
from math import log, sqrt

import pytest

from magneto.cli import main


def answer(capsys: pytest.CaptureFixture[str], line: str) -> dict:
    assert main(["bound", *line.split(), "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return json.loads(out)


def test_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    """Of theorems 1 to 3, of DeepNet's, and of other forms, by hand."""
    for line, form, expected in (
        ("", "paper", 2.9794),
        ("--layers 12 --v 1 --w 1", "paper", 9.4686),
        ("--placement pre-qk --layers 12", "first_order", 3.9167),
        ("--placement post --layers 12", "paper", 48),
        ("--encoder-layers 6 --decoder-layers 6 --v 1 --w 1", "paper", 20.7767),
        ("--encoder-layers 6 --decoder-layers 6 --cross-gain 1", "paper", 5.5970),
        ("--encoder-layers 18 --decoder-layers 18 --cross-attention paper", "first_order", 1.5679),
    ):
        made = answer(capsys, line)
        assert made["forms"][form] == pytest.approx(expected, abs=5e-4), line
        assert made["bound"] == made["forms"]["paper"]


def test_json_tells_what_was_computed(capsys: pytest.CaptureFixture[str]) -> None:
    made = answer(capsys, "--encoder-layers 6 --decoder-layers 12 --placement sub")
    assert set(made["forms"]) == {"paper", "first_order", "telescoped"}
    assert (made["encoder_layers"], made["decoder_layers"]) == (6, 12)
    assert made["bound"] == made["decoder"] + made["passed_on"] * made["encoder"]
    assert made["scales"]["decoder"]["v"] == pytest.approx(1.8930, abs=5e-5)
    # Each stack's gain is of its own depth and of the other's.
    assert made["scales"]["encoder"]["v"] == pytest.approx(sqrt(log(3 * 12) * log(2 * 6) / 3))
    assert made["depths"][1]["layers"] == {"encoder": 12, "decoder": 24}
    assert made["growth_exponent"]["paper"] < 0
    assert made["cross_attention"] == "second"


def test_two_stacks_may_have_scales_each(capsys: pytest.CaptureFixture[str]) -> None:
    made = answer(capsys, "--encoder-layers 1 --decoder-layers 1 --v 2/1,3,1 --w 1")
    assert made["scales"]["encoder"]["v"] == 2
    assert made["scales"]["decoder"]["v"] == [1, 3, 1]
    assert made["growth_exponent"]["paper"] is None
    assert len(made["depths"]) == 1
    # D = 11, sum of steps 14, 1 + 9/1 + 1/10; cross 9/11 of it.
    assert made["decoder"] == pytest.approx(14 / 11 * 10.1)
    assert made["passed_on"] == pytest.approx(9 / 11 * 10.1)
    # D = 8, sum of steps 10, 1 + 4/4.
    assert made["encoder"] == pytest.approx(10 / 8 * 2)


def test_table_over_depths(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bound", "--placement", "pre", "--layers", "6"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Pre-LN, model update")
    assert lines[2].split() == ["layers", "v", "w", "paper", "first_order", "telescoped"]
    cells = {line.split()[0]: line.split()[1:] for line in lines[3:10]}
    assert list(cells) == ["6", "12", "24", "48", "96", "growth", "exponent"]
    assert cells["6"] == ["1.0000", "1.0000", "8.0398", "3.8333", "4.3603"]
    assert cells["48"][2] == "12.2727"
    assert cells["growth"] == ["x1.70", "x1.04", "x2.22"]
    assert 0 < float(cells["exponent"][0]) < 0.3


def test_one_depth_and_an_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bound", "--layers", "1", "--v", "1,2", "--w", "1,3"]) == 0
    out = capsys.readouterr().out
    assert "1..2" in out and "growth" not in out
    assert main(["bound", "--placement", "post"]) == 0
    out = capsys.readouterr().out
    assert "an order of growth" in out and "x16.00" in out


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for line, message in (
        ("--placement normformer", "no bound is derived for NormFormer"),
        ("--placement peri", "post, pre, deepnorm, sub, pre-qk"),
        ("--placement subb", "did you mean 'sub'?"),
        ("--layers x", "--layers"),
        ("--layers 0", "1 to 100000 layers, not 0"),
        ("--layers 1000000000", "1 to 100000 layers"),
        ("--encoder-layers 2 --decoder-layers 0", "not 0"),
        ("--layers 3 --encoder-layers 2", "--layers is for one stack"),
        ("--layer 3", "did you mean --layers?"),
        ("--cross-attention paper", "both --encoder-layers and --decoder-layers"),
        ("--cross-gain 1", "both --encoder-layers and --decoder-layers"),
        ("--v a", "--v a"),
        ("--v 1/2", "2 stacks where there are 1"),
        ("--v 1,2", "v has 2 values for 24 sublayers"),
        ("--w=-1", "w of sublayer 1 must be a positive number"),
        ("--v nan --json", "v of sublayer 1 must be a positive number"),
    ):
        assert main(["bound", *line.split()]) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1 and message in said.err, line
