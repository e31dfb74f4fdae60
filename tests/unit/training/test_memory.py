"""Whether a training fits is known before a model is built, and its weights before data is read."""

from collections.abc import Iterator

import pytest
import torch

from magneto.lab.without_data import check_weights_first
from magneto.recipe import load_recipe
from magneto.training.config import TrainingConfig
from magneto.training.distributed import one_process
from magneto.training.model import check_memory, layer_input_bytes
from tests.unit.training.toy import Toy

CPU = torch.device("cpu")
LARGE_IMAGES = {"model.image_size": 512, "model.patch_size": 16,
                "model.max_length": 1025, "training.batch_size": 10**5}  # fmt: skip
MANY_ROWS = {"data.tokenizer": "bytes", "training.batch_size": 10**7}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine of 64 GB."""
    monkeypatch.setattr("magneto.training.model.memory_of", lambda device: 64_000_000_000)
    yield


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("image-classification", {"model.classes": 10**9}, "head.weight has the most, 1000000000"),
        ("image-modelling", {"model.codes": 10**9}, "head.weight has the most, 1000000000 x 64"),
        ("image-tokenizer", {"model.codes": 10**9}, "of which tokenizer.codebook.seen"),
        ("transducer", {"model.joint_width": 10**7}, "of which joiner.output.weight has the most"),
    ],
)
def test_weights_that_can_not_fit_are_refused_before_data_is_read(
    name: str, changes: dict, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe(f"{name}/tiny", changes)
    monkeypatch.setattr(type(recipe.build_task()), "prepare", pytest.fail)
    with pytest.raises(ValueError, match=said) as caught:
        check_weights_first(recipe)
    assert " GB" in str(caught.value) and "the cpu here has 64 GB" in str(caught.value)


@pytest.mark.parametrize("name", ["causal-lm/24l", "transducer/librispeech-36l", "translation/tiny",
                                  "vision-language-modelling/beit3-24l", "text-classification/sst2",
                                  "visual-question-answering/tiny"])  # fmt: skip
def test_weights_that_fit_are_not_refused(name: str) -> None:
    """Nor is a recipe for several processes, which a probe looks at in one."""
    for strategy in ("auto", "fsdp"):
        check_weights_first(load_recipe(name, {"training.distributed": strategy}))


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("image-classification", LARGE_IMAGES, "fill: lower it or the size of an example"),
        ("causal-lm", MANY_ROWS, "training.batch_size 10,000,000: a batch"),
    ],
)
def test_a_batch_that_can_not_fit_is_refused(name: str, changes: dict, said: str) -> None:
    recipe = load_recipe(f"{name}/tiny", changes)
    task = recipe.build_task()
    task.prepare()
    with pytest.raises(ValueError, match=said) as caught:
        check_memory(task, recipe.training, one_process(CPU), 1)
    assert " GB" in str(caught.value) and "the cpu here has 64 GB" in str(caught.value)


@pytest.mark.parametrize("name", ["image-modelling", "text-classification"])
def test_what_fits_is_not_refused(name: str) -> None:
    """Texts are shorter than the longest that there may be."""
    changes = {"training.batch_size": 3 * 4096}
    if name == "text-classification":
        changes |= {"data.max_length": 8192, "model.max_length": 8192, "data.tokenizer": "bytes"}
    recipe = load_recipe(f"{name}/tiny", changes)
    task = recipe.build_task()
    task.prepare()
    check_memory(task, recipe.training, one_process(CPU), 1)


@pytest.mark.parametrize(
    "name",
    ["image-classification", "image-tokenizer", "image-modelling", "vision-language-modelling"],
)
def test_what_layers_are_given_is_known_beside_a_frozen_model(name: str) -> None:
    task = load_recipe(f"{name}/tiny").build_task()
    task.prepare()
    (batch,) = task.train_stream(12, 1).batch(0)
    config = task.model_config
    found = layer_input_bytes(task, batch)
    images = 12 if name != "vision-language-modelling" else 8  # of images, of pairs, of texts
    assert found >= config.layers * 2 * images * config.width * config.patches
    companion = task.companion()
    for module in () if companion is None else (companion,):
        assert not any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))


def test_more_pieces_help_until_the_examples_alone_are_too_many(monkeypatch) -> None:
    """Of a toy's examples each has 20 bytes, and its two layers are given 64."""
    monkeypatch.setattr("magneto.training.model.memory_of", lambda device: 1_000_000)
    for batch_size, pieces, said in (
        (15_000, 1, ""), (20_000, 1, "which 15,625 examples fill.*gradient_accumulation_steps$"),
        (20_000, 2, ""), (60_000, 50, "which 50,000 examples fill: .* the size of an example$"),
    ):  # fmt: skip
        config = TrainingConfig(batch_size=batch_size, gradient_accumulation_steps=pieces)
        if not said:
            check_memory(Toy(), config, one_process(CPU), 1)
            continue
        with pytest.raises(ValueError, match=said):
            check_memory(Toy(), config, one_process(CPU), 1)
