"""From a masked language model to a classifier by the command line."""

import json
from pathlib import Path

import pytest

from magneto.cli import main
from tests.commands import Pieces, answer, outcome, printed, refused
from tests.unit.language.test_classification import write_pairs

SMALL = [
    "--model.width", "32", "--model.layers", "2", "--model.heads", "4", "--model.ffn_width", "64",
    "--training.batch_size", "8", "--training.tensorboard", "false", "--training.device", "cpu",
    "--training.warmup_steps", "2", "--training.evaluate_every", "0",
]  # fmt: skip


def test_from_masked_language_model_to_scores_on_other_data(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All steps use the command line; the second run still works after the first is deleted."""
    pytest.importorskip("tokenizers")
    text = "\n\n".join(f"A paragraph about number {i}. " * 40 for i in range(60))
    (tmp_path / "text.txt").write_text(text)
    write_pairs(tmp_path / "rows.tsv")
    first, second = tmp_path / "mlm-pre", tmp_path / "second"
    shape = [*SMALL, "--model.placement", "pre"]
    pretrain = f"""train masked-lm/tiny --data {tmp_path}/text.txt --data.vocab_size 300
    --data.max_length 16 --training.steps 2 --out {first}"""
    assert main([*pretrain.split(), *shape]) == 0
    tune = f"""train text-classification/tiny --data {tmp_path}/rows.tsv --data.text_column one
    --data.pair_column two --data.label_column answer --training.steps 3 --model.rotary_base 100
    --model.pretrained {tmp_path}/mlm-{{placement}} --out {second}"""
    words = [*tune.split(), *shape]
    assert "set --model.layers 2" in refused(capsys, *words, "--model.layers", "3")
    code, _, output = outcome(capsys, *words)
    assert code == 0 and f"warning: the encoder of {first} is hardly better than" in output
    kept = "assets/tokenizer/tokenizer.json"
    assert (second / kept).read_bytes() == (first / kept).read_bytes()
    first.rename(tmp_path / "gone")
    (tmp_path / "rows.tsv").rename(tmp_path / "moved.tsv")
    other = tmp_path / "other.csv"
    other.write_text("one,two,answer\nab,ac,same\nab,cc,other\n")
    code, out, err = outcome(capsys, "evaluate", second, "--data", other, "--json")
    assert code == 0 and json.loads(out)["accuracy"] in (0.0, 0.5, 1.0)
    assert "the data has changed" not in err
    rows = answer(capsys, "predict", second, other, "--probabilities")["texts"]
    assert [(row["text"], row["pair"]) for row in rows] == [("ab", "ac"), ("ab", "cc")]
    monkeypatch.setattr("sys.stdin", Pieces(b"ab\tac\nab\tcc\n"))
    assert answer(capsys, "predict", second, "--probabilities")["texts"] == rows
    line = printed(capsys, "predict", second, "ab\tac", "--probabilities").rstrip("\n")
    assert line.split("\t")[0::2] == [rows[0]["label"], "ab"] and line.endswith("\tac")
    other.write_text("one,two,answer\nab,ac,maybe\n")
    line = refused(capsys, "evaluate", second, "--data", other)
    assert "unknown labels in the rows ('maybe')" in line
