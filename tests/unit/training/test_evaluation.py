"""One evaluation: in training, by the command and on several ranks it gives the same metrics."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from magneto.cli import main
from magneto.training.config import TrainingConfig
from magneto.training.distributed import World, join_world, replicate_model, shard_model
from magneto.training.evaluation import evaluate
from magneto.training.task import Scores
from tests.evaluating import measured
from tests.ranks import run_ranks
from tests.unit.training.toy import Toy, config, run_toy

LIMITS = (None, 1, 3, 99)


def toy_model() -> nn.Module:
    torch.manual_seed(5)
    return Toy(dropout=0.5).build_model()


def test_sums_and_predictions_of_unequal_batches() -> None:
    """Batches of 25, 7, 19, 1 and 12 rows give what all rows at once give."""
    task, model = Toy(), toy_model()
    x, y = task.set
    answers = model.eval()(x)
    found = measured(task, model)
    assert found["loss"] == pytest.approx((answers - y).square().mean().item(), rel=1e-6)
    assert found["sign"] == ((answers > 0) == (y > 0)).double().mean().item()
    first = measured(task, model, limit=2)
    assert first["loss"] == pytest.approx((answers - y)[:32].square().mean().item(), rel=1e-6)
    assert measured(task, model, limit=99) == found


def test_predictions_come_in_the_order_of_the_batches() -> None:
    seen: list[Any] = []

    class Ordered(Toy):
        def summarise(self, sums, predictions) -> dict[str, float]:
            seen.extend(len(each["known"]) for each in predictions)
            return {"loss": 0.0}

    measured(Ordered(), toy_model())
    assert seen == [25, 7, 19, 1, 12]


def test_the_model_is_left_in_the_modes_it_had() -> None:
    modes = []

    class Watched(Toy):
        def score(self, model: Any, batch: Any) -> Scores:
            modes.append((model.dropout.training, torch.is_grad_enabled()))
            return super().score(model, batch)

    model = toy_model().train()
    frozen = model.get_submodule("into").eval()
    measured(Watched(), model)
    assert set(modes) == {(False, False)}
    assert model.training and model.get_submodule("dropout").training and not frozen.training


def test_sums_may_have_a_shape_and_there_may_be_none() -> None:
    class Shaped(Toy):
        def score(self, model: Any, batch: Any) -> Scores:
            return Scores({"table": torch.ones(2, 3), "one": torch.tensor(1)})

        def summarise(self, sums, predictions) -> dict[str, float]:
            assert sums["table"] == [[5.0] * 3] * 2 and predictions == []
            return {"one": sums["one"]}

    class Bare(Toy):
        def score(self, model: Any, batch: Any) -> Scores:
            return Scores({}, len(batch[0]))

        def summarise(self, sums, predictions) -> dict[str, float]:
            assert not sums
            return {"rows": sum(predictions)}

    assert measured(Shaped(), toy_model()) == {"one": 5.0}
    assert measured(Bare(), toy_model()) == {"rows": 64}


def test_no_batch_is_an_error() -> None:
    class Empty(Toy):
        def validation_batches(self) -> list:
            return []

    with pytest.raises(ValueError, match="nothing to evaluate on"):
        measured(Empty(), toy_model())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_command_repeats_the_last_evaluation_of_training(
    precision: str, tmp_path: Path, capsys
) -> None:
    """Bit for bit, on a CPU; in bf16 the numbers are others than in fp32."""
    text = "\n\n".join(f"A paragraph about the number {i}. " * 40 for i in range(200))
    (tmp_path / "book.txt").write_text(text)
    words = f"""train causal-lm/tiny --data {tmp_path}/book.txt --out {tmp_path}/run
    --model.width 32 --model.layers 2 --model.heads 2 --model.ffn_width 64 --data.tokenizer bytes
    --data.max_length 32 --training.batch_size 4 --training.steps 6 --training.warmup_steps 1
    --training.evaluate_every 3 --training.evaluate_limit 5 --training.tensorboard false
    --training.device cpu --training.precision {precision}""".split()
    assert main(words) == 0
    rows = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if "validation_loss" in row][-1]

    def by_command(*more: str) -> dict[str, float]:
        command = ["evaluate", str(tmp_path / "run"), "--weights", "final", "--limit", "5"]
        capsys.readouterr()
        assert main([*command, *more, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    found = by_command()
    for name in ("loss", "perplexity", "bits_per_byte"):
        assert found[name] == trained[f"validation_{name}"]
    other = by_command("--training.precision", {"fp32": "bf16", "bf16": "fp32"}[precision])
    assert other["loss"] != found["loss"]
    assert other["loss"] == pytest.approx(found["loss"], rel=0.02)


def test_training_evaluates_by_the_same_function(tmp_path: Path) -> None:
    result = run_toy(tmp_path, evaluate_limit=3)
    assert result.metrics.keys() == {"loss", "sign"}
    assert json.loads((tmp_path / "result.json").read_text())["metrics"] == result.metrics


def evaluate_toy(settings: TrainingConfig) -> None:
    """Be one of several ranks; the first prints the metrics under each limit."""
    with join_world(settings) as world:
        found = metrics_by_limit(world)
        if world.is_main_process:
            print(json.dumps(found))


def metrics_by_limit(world: World) -> list[dict[str, float]]:
    # A function, so that the model is gone before the ranks part: torch may wait for ever where a
    # DistributedDataParallel is the last that holds their group.
    model = replicate_model(shard_model(toy_model(), world), world)
    return [evaluate(Toy(), model, world, "fp32", limit).metrics for limit in LIMITS]


@pytest.mark.distributed
@pytest.mark.parametrize(("kind", "ranks"), [("ddp", 3), ("fsdp", 2)])
def test_ranks_agree_with_one_process(kind: str, ranks: int) -> None:
    """With five batches, and with fewer than ranks; predictions agree exactly."""
    said = run_ranks(ranks, __file__, kind).splitlines()
    found = json.loads(next(line for line in said if line.startswith("[{")))
    for theirs, limit in zip(found, LIMITS, strict=True):
        mine = measured(Toy(), toy_model(), limit)
        assert theirs["loss"] == pytest.approx(mine["loss"], rel=1e-5)
        assert theirs["sign"] == mine["sign"]


if __name__ == "__main__":
    evaluate_toy(config(distributed=sys.argv[1]))
