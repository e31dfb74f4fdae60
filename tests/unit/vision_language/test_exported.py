"""A model begins with BEiT-3's converted weights, or with an exported model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
spm = pytest.importorskip("sentencepiece")

from magneto.cli import main  # noqa: E402
from magneto.hf.weights.beit3 import to_beit3 as to_multiway  # noqa: E402
from magneto.recipe import load_recipe  # noqa: E402
from magneto.vision_language.config import FineTunedConfig, MaskedDataModelConfig  # noqa: E402
from magneto.vision_language.model import (  # noqa: E402
    MaskedDataModel,
    VisionLanguageEncoder,
)
from magneto.vision_language.pretrained import (  # noqa: E402
    exported_config,
    is_exported,
    load_pretrained,
    pretrained_reading,
)
from tests.oracles.test_hf_beit3_tokenizer import train as train_spm  # noqa: E402

SIZES: dict[str, Any] = {"width": 32, "layers": 2, "heads": 4, "ffn_width": 48, "patch_size": 16}
PIECES = 60


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small weights of pre-training, by their authors' names, and beit3.spm."""
    folder = tmp_path_factory.mktemp("released")
    torch.manual_seed(0)
    config = MaskedDataModelConfig(
        **SIZES, placement="sub", image_size=32, vocab_size=PIECES, codes=6, max_length=70,
        embedding_scale="none",
    )  # fmt: skip
    state, _ = to_multiway(MaskedDataModel(config))
    torch.save({"model": state}, folder / "beit3_small_patch16_32.pth")
    (folder / "heads.json").write_text(json.dumps({"encoder_attention_heads": 4}))
    train_spm(folder)
    return folder


@pytest.fixture(scope="module")
def converted(released: Path) -> Path:
    folder = released / "converted"
    words = [released / "beit3_small_patch16_32.pth", folder, "--config", released / "heads.json"]
    assert main(["convert", *map(str, words), "--tokenizer", str(released / "beit3.spm")]) == 0
    return folder


def test_fine_tuning_begins_with_converted_weights(released: Path, converted: Path) -> None:
    """At another image size, with its tokenizer, by the ordinary option."""
    assert is_exported(converted) and exported_config(converted).image_size == 32
    changes = {f"model.{name}": value for name, value in SIZES.items()}
    changes |= {"model.embedding_scale": "none", "model.pretrained": str(converted)}
    recipe = load_recipe("visual-question-answering/tiny", changes)
    task: Any = recipe.build_task()
    task.prepare()
    model = task.build_model()
    assert task.tokenizer.vocab_size == model.config.vocab_size == PIECES
    assert task.framed("training", ["a blue cross"])[0][0] == 0
    state = torch.load(released / "beit3_small_patch16_32.pth")["model"]
    found = {name: tensor.read() for name, tensor in task.initial_weights().items()}
    assert found.keys() == {n for n in model.state_dict() if n.startswith("encoder.")}
    words = found["encoder.text_embedding.words.table.weight"]
    assert torch.equal(words, state["beit3.text_embed.weight"])
    positions = found["encoder.text_embedding.positions.weight"]
    assert torch.equal(positions, state["beit3.encoder.embed_positions.B.weight"][2:34])
    vision = found["encoder.vision_embedding.positions.weight"]
    assert vision.shape == (10, 32)
    assert torch.equal(vision[0], state["beit3.encoder.embed_positions.A.weight"][2])


def test_an_encoder_without_a_head(released: Path, converted: Path) -> None:
    """torchscale's BEiT3 by itself: its tensors get the encoder's prefix."""
    state = torch.load(released / "beit3_small_patch16_32.pth")["model"]
    bare = {n.removeprefix("beit3."): t for n, t in state.items() if n.startswith("beit3.")}
    torch.save(bare, released / "bare.pt")
    folder = released / "bare"
    words = [released / "bare.pt", folder, "--config", released / "heads.json"]
    assert main(["convert", *map(str, words)]) == 0
    config = FineTunedConfig(
        **SIZES, placement="sub", image_size=32, vocab_size=PIECES, embedding_scale="none",
        pretrained=str(folder),
    )  # fmt: skip
    model = torch.nn.ModuleDict({"encoder": VisionLanguageEncoder(config)})
    assert load_pretrained(model, config).missing == []
    with pytest.raises(FileNotFoundError, match=r"has no tokenizer: .* --tokenizer beit3\.spm"):
        pretrained_reading(config)


def test_what_is_no_such_folder(released: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    config = FineTunedConfig(**SIZES, vocab_size=PIECES, pretrained=str(tmp_path))
    with pytest.raises(ValueError, match="is no model of vision and language"):
        load_pretrained(torch.nn.Linear(1, 1), config)
