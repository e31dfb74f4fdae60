"""Whether a training fits is known before data is prepared and a model is built."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch

from magneto.recipe import load_recipe
from magneto.training.config import TrainingConfig
from magneto.training.distributed import one_process
from magneto.training.memory import check_memory
from tests.training.toy import Toy

CPU = torch.device("cpu")
LARGE_IMAGE = {
    "model.image_size": 8192, "model.patch_size": 2, "model.max_length": 1 << 24,
    "model.channels": 3, "training.batch_size": 64,
}  # fmt: skip


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine of 64 GB."""
    monkeypatch.setattr("magneto.training.memory.memory_of", lambda device: 64_000_000_000)
    yield


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("image-classification", {"model.classes": 10**9}, "head.weight has the most, 1000000000"),
        ("image-modelling", {"model.codes": 10**9}, "head.weight has the most, 1000000000 x 64"),
        (
            "image-tokenizer",
            {"model.codes": 10**9},
            "of which tokenizer.codebook.seen",
        ),
        ("transducer", {"model.joint_width": 10**7}, "of which joiner.output.weight has the most"),
        ("image-classification", LARGE_IMAGE, "fill: lower it or the size of an example"),
        ("causal-lm", {"training.batch_size": 10**7}, "training.batch_size 10,000,000: a batch"),
    ],
)
def test_what_can_not_fit_is_refused(name: str, changes: dict, said: str) -> None:
    recipe = load_recipe(f"{name}/tiny", changes)
    task = recipe.build_task()
    task.prepare = pytest.fail  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=said) as caught:
        check_memory(task, recipe.training, one_process(CPU))
    assert " GB" in str(caught.value) and "the cpu here has 64 GB" in str(caught.value)


@pytest.mark.parametrize("name", ["causal-lm/24l", "transducer/librispeech-36l", "translation/tiny",
                                  "vision-language-modelling/beit3-24l"])  # fmt: skip
def test_what_fits_is_not_refused(name: str) -> None:
    """And the task is left as it was."""
    recipe = load_recipe(name, {"training.batch_size": 64})
    task = recipe.build_task()
    before = state(task)
    check_memory(task, recipe.training, one_process(CPU))
    assert state(task) == before


def state(task: object) -> dict[str, tuple[object, dict]]:
    """What a task holds, and what that holds."""
    return {name: (held, dict(getattr(held, "__dict__", {}))) for name, held in vars(task).items()}


def test_texts_may_be_shorter_than_the_longest() -> None:
    """A batch is padded to its own longest text, which only data tells."""
    for batch_size, said in ((4096, ""), (1 << 24, "training.batch_size 16,777,216: a batch")):
        changes = {"data.max_length": 8192, "model.max_length": 8192,
                   "training.batch_size": batch_size}  # fmt: skip
        recipe = load_recipe("text-classification/sst2", changes)
        task = recipe.build_task()
        with pytest.raises(ValueError, match=said) if said else nullcontext():
            check_memory(task, recipe.training, one_process(CPU))


def test_more_pieces_help_until_the_examples_alone_are_too_many(monkeypatch) -> None:
    """Of a toy's examples each has 20 bytes, and its two layers are given 64."""
    monkeypatch.setattr("magneto.training.memory.memory_of", lambda device: 1_000_000)
    for batch_size, pieces, said in (
        (15_000, 1, ""), (20_000, 1, "which 15,625 examples fill.*gradient_accumulation_steps$"),
        (20_000, 2, ""), (60_000, 50, "which 50,000 examples fill: .* the size of an example$"),
    ):  # fmt: skip
        config = TrainingConfig(batch_size=batch_size, gradient_accumulation_steps=pieces)
        if not said:
            check_memory(Toy(), config, one_process(CPU))
            continue
        with pytest.raises(ValueError, match=said):
            check_memory(Toy(), config, one_process(CPU))
