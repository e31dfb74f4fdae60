"""`magneto evaluate` by several processes."""

import json
import sys
from pathlib import Path

import pytest

from magneto.cli import main
from magneto.vision.classification import ImageClassification
from tests.ranks import run_ranks
from tests.system.commands.conftest import outcome


def count_scored() -> None:
    """Evaluate as the command does, and say on stderr how many batches this process scored."""
    scored, score = [], ImageClassification.score

    def counted(task, model, batch):
        scored.append(batch)
        return score(task, model, batch)

    ImageClassification.score = counted  # type: ignore[method-assign]
    code = main(sys.argv[1:])
    print(f"scored {len(scored)}", file=sys.stderr)
    sys.exit(code)


@pytest.mark.distributed
def test_ranks_share_the_batches_and_one_prints(digits_run: Path, capsys) -> None:
    words = ["evaluate", str(digits_run), "--limit", "2", "--json"]
    _, alone, _ = outcome(capsys, *words)
    said = run_ranks(2, __file__, *words)
    (line,) = [line for line in said.splitlines() if line.startswith("{")]
    expected, found = json.loads(alone), json.loads(line)
    for name in ("run", "weights"):
        assert found.pop(name) == expected.pop(name)
    assert found == pytest.approx(expected, rel=1e-5)
    assert said.count("scored 1\n") == 2


def test_what_one_process_measures_waits_for_no_other(
    digits_run: Path, capsys, monkeypatch
) -> None:
    """And standard input, of which each would read a part, is refused."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("magneto.commands.evaluate.joined_processes", pytest.fail)
    alone = "magneto.commands.evaluate.judge_features"
    monkeypatch.setattr(alone, lambda given, overrides: print(given.features) or 0)
    assert outcome(capsys, "evaluate", digits_run, "--features") == (0, "True\n", "")
    code, _, error = outcome(capsys, "evaluate", digits_run, "--data", "-")
    assert code == 2 and "several processes can't share standard input" in error


if __name__ == "__main__":
    count_scored()
