"""`magneto evaluate` with several processes, and on multiple-choice suites."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from magneto.cli import main
from magneto.vision.classification import ImageClassification
from tests.commands import answer, outcome, printed, refused
from tests.ranks import run_ranks


def count_scored() -> None:
    """Run the command, and print on stderr the number of batches of this process."""
    scored, score = [], ImageClassification.score

    def counted(task, model, batch):
        scored.append(batch)
        return score(task, model, batch)

    ImageClassification.score = counted  # type: ignore[method-assign]
    code = main(sys.argv[1:])
    # One write: two would mix with those of another rank.
    sys.stderr.write(f"scored {len(scored)}\n")
    sys.exit(code)


@pytest.mark.distributed
def test_ranks_share_the_batches_and_one_prints(digits_run: Path, capsys) -> None:
    words = ["evaluate", str(digits_run), "--limit", "2", "--json"]
    _, alone, _ = outcome(capsys, *words)
    output = run_ranks(2, __file__, *words)
    (line,) = [line for line in output.splitlines() if line.startswith("{")]
    expected, found = json.loads(alone), json.loads(line)
    for name in ("run", "weights"):
        assert found.pop(name) == expected.pop(name)
    assert found == pytest.approx(expected, rel=1e-5)
    assert output.count("scored 1\n") == 2


def test_what_one_process_measures_waits_for_no_other(
    digits_run: Path, capsys, monkeypatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("magneto.training.distributed.join_world", pytest.fail)
    alone = "magneto.commands.evaluate.judge_features"
    monkeypatch.setattr(alone, lambda given, *rest: print(given.features) or 0)
    assert outcome(capsys, "evaluate", digits_run, "--features") == (0, "True\n", "")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, language_run: Path) -> Path:
    """A folder with a link to a run, and question files."""
    folder = tmp_path_factory.mktemp("in_context")
    (folder / "run").symlink_to(language_run)
    data = folder / "data"
    data.mkdir()
    records = [
        {"sentence": f"Ann saw Eve {n} times since _ was late.", "option1": "Ann",
         "option2": "Eve", "answer": str(1 + n % 2)}
        for n in range(6)
    ]  # fmt: skip
    (data / "winogrande_dev.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    record = {"query": "A man", "choices": ["sits.", "runs.", "flies far away."], "label": 2}
    (data / "hellaswag_val.jsonl").write_text(f"{json.dumps(record)}\n" * 3)
    return folder


def words_of(place: Path, words: str) -> list[str]:
    return ["evaluate", str(place / "run"), "--data", str(place / "data"), *words.split()]


def test_scores_of_suites(place: Path, capsys: pytest.CaptureFixture) -> None:
    words = "--tasks winogrande,hellaswag --num-fewshot 0,1 --seeds 1,2"
    found = answer(capsys, *words_of(place, words))
    order = [(score["suite"], score["num_fewshot"]) for score in found["scores"]]
    assert order == [("winogrande", 0), ("winogrande", 1), ("hellaswag", 0), ("hellaswag", 1)]
    first, second, third, _ = found["scores"]
    assert (first["items"], first["chance"], first["seeds"]) == (6, 0.5, [1])
    assert len(second["by_sum"]["by_seed"]) == 2
    assert third["chance"] == pytest.approx(1 / 3)
    assert 0 <= third["by_mean"]["mean"] <= 1
    assert found["sources"]["winogrande"]["demonstrations"] == "the other questions"
    assert found["length"] == 64
    words = "--tasks winogrande --num-fewshot 0,4 --limit 5 --max-length 100"
    out = printed(capsys, *words_of(place, words))
    header, zero, four, *_ = out.splitlines()
    assert header.split()[:3] == ["suite", "shots", "accuracy"]
    assert zero.split()[0::8] == ["winogrande", "5"] and four.split()[1] == "4"
    assert "in 100 tokens" in out  # four sentences do not fit in a hundred bytes


def test_tasks_of_the_harness_are_scored_with_each_number_of_demonstrations(
    place: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    asked: list[tuple[Any, ...]] = []

    def scores(wrapped: str, theirs: list[str], count: int, *rest: Any, limit: int) -> Any:
        asked.append((wrapped, theirs, count, *rest, limit))
        return {"results": {name: {"alias": name, "acc": count / 8} for name in theirs}}

    monkeypatch.setattr("magneto.commands.evaluate.harness_manager", lambda *_: "manager")
    monkeypatch.setattr("magneto.hf.export.harness_model", lambda *_: "wrapped")
    monkeypatch.setattr("magneto.hf.export.harness_scores", scores)
    words = words_of(place, "--tasks boolq,lambada --num-fewshot 1,0,4 --seeds 7,2 --limit 3")
    found = answer(capsys, *words)
    assert asked == [("wrapped", ["boolq", "lambada"], n, 7, "manager", 3) for n in (1, 0, 4)]
    assert found["harness"] == {
        str(n): {name: {"acc": n / 8} for name in ("boolq", "lambada")} for n in (1, 0, 4)
    }
    lines = [line.split() for line in printed(capsys, *words).splitlines()]
    assert all([name, f"{n}-shot", "acc", f"{n / 8:.4f}"] in lines
               for n in (1, 0, 4) for name in ("boolq", "lambada"))  # fmt: skip


def test_mistakes_are_one_line(place: Path, capsys, monkeypatch) -> None:
    # lm-evaluation-harness's own list of tasks takes seconds to read.
    monkeypatch.setattr("magneto.commands.evaluate.find_spec", lambda name: None)
    one = f"--data {place}/data/hellaswag_val.jsonl"
    assert main(words_of(place, f"--tasks hellaswag {one}")) == 0
    monkeypatch.setattr("magneto.language.in_context.evaluate_suite", pytest.fail)
    for words, message in (
        ("--tasks winogrand", "unknown task 'winogrand'; did you mean winogrande"),
        ("--tasks lambada", "foundation-transformers[eval]"),
        ("--tasks storycloze", "no questions of storycloze"),
        ("--tasks winogrande --include nowhere", "--include: no folder nowhere"),
        ("--tasks winogrande --num-fewshot 0,6", "only 5 demonstrations of winogrande"),
        (f"--tasks hellaswag,winogrande {one}", "several tasks need a folder"),
        ("--tasks hellaswag --keep it", "--keep has no effect with --tasks; omit it"),
        ("--num-fewshot=4", "--num-fewshot has no effect with causal-lm runs"),
    ):
        assert message in refused(capsys, *words_of(place, words))


if __name__ == "__main__":
    count_scored()
