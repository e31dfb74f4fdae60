"""The classifier reads its first feature, not its padding; pre-trained encoders fit or say why."""

import math
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file

from magneto.files import Damaged, whole_directory
from magneto.language.classification import check_pretrained, pretrained_run, pretrained_weights
from magneto.language.config import MaskedLanguageModelConfig, TextClassifierConfig
from magneto.language.models import MaskedLanguageModel, TextClassifier
from magneto.recipe import load_recipe
from magneto.training.checkpoint import fill, model_pieces

SIZES = {
    "width": 32, "layers": 2, "heads": 4, "ffn_width": 48, "vocab_size": 50, "positions": "rotary",
}  # fmt: skip


def classifier(**changes) -> TextClassifier:
    torch.manual_seed(0)
    return TextClassifier(TextClassifierConfig(**{**SIZES, "classes": 3, **changes})).eval()


def test_the_first_loss_is_near_ln_classes() -> None:
    logits = classifier()(torch.randint(0, 50, (64, 9)))
    loss = torch.nn.functional.cross_entropy(logits, torch.randint(0, 3, (64,)))
    assert logits.shape == (64, 3) and loss.item() == pytest.approx(math.log(3), abs=0.05)


def test_padding_changes_nothing() -> None:
    model = classifier(token_types=2)
    tokens = torch.randint(0, 50, (2, 6))
    types = torch.tensor([[0, 0, 0, 1, 1, 1]] * 2)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[:, 6:] = False
    padded = torch.cat([tokens, torch.full((2, 3), 7)], dim=1)
    longer = torch.cat([types, torch.zeros(2, 3, dtype=torch.long)], dim=1)
    alone = model(tokens, None, types)
    assert torch.allclose(model(padded, mask, longer), alone, atol=1e-5)
    assert not torch.allclose(model(tokens, None, torch.zeros_like(types)), alone, atol=1e-4)


def test_the_head_drops_out_in_training_only() -> None:
    model = classifier(head_dropout=0.5)
    tokens = torch.randint(0, 50, (2, 6))
    assert torch.equal(model(tokens), model(tokens))
    model.train()
    assert not torch.equal(model(tokens), model(tokens))


@pytest.mark.parametrize("wrong", [{"classes": 0}, {"head_dropout": 1.0}])
def test_impossible_values(wrong: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TextClassifierConfig(**wrong)


def save(run: Path, tensors: dict[str, torch.Tensor]) -> None:
    with whole_directory(run / "final") as aside:
        save_file(tensors, aside / "model.safetensors")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A masked language model's run, as far as its weights go."""
    torch.manual_seed(1)
    model = MaskedLanguageModel(MaskedLanguageModelConfig(**SIZES))
    run = tmp_path / "mlm-sub"
    save(run, {k: v for k, v in model.state_dict().items() if k != "head.vocabulary.weight"})
    shape = {**SIZES, "placement": "sub", "dropout": 0.3, "tie_embeddings": True}
    recipe = load_recipe("masked-lm/tiny").to_mapping()
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe | {"model": shape}))
    return run


def test_an_encoder_is_taken_over_whole(run: Path) -> None:
    config = TextClassifierConfig(
        **SIZES, classes=3, pretrained=str(run.parent / "mlm-{placement}")
    )
    assert pretrained_run(config) == run
    check_pretrained(config)  # another dropout is no other shape
    model = TextClassifier(config)
    before = model.text_encoder.embedding.table.weight.clone()
    given = pretrained_weights(model.text_encoder, run)
    pieces = model_pieces(model)
    fill({name: pieces[name] for name in given}, given, run)
    torch.manual_seed(1)
    origin = MaskedLanguageModel(MaskedLanguageModelConfig(**SIZES)).text_encoder
    for name, tensor in origin.state_dict().items():
        assert torch.equal(model.text_encoder.state_dict()[name], tensor), name
    assert not torch.equal(before, model.text_encoder.embedding.table.weight)


def test_another_shape_names_the_options_that_fit(run: Path) -> None:
    wrong = {**SIZES, "layers": 3, "positions": "learned"}
    config = TextClassifierConfig(**wrong, placement="pre", pretrained=str(run))
    with pytest.raises(
        ValueError, match=r"give --model\.layers 2 --model\.placement sub --model\.p"
    ):
        check_pretrained(config)
    with pytest.raises(ValueError, match=r"another encoder: encoder\.layers"):
        other = TextClassifier(TextClassifierConfig(**wrong, classes=2))
        pretrained_weights(other.text_encoder, run)


def test_runs_that_are_not_there_or_hold_no_encoder(run: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"did you mean .*mlm-sub"):
        check_pretrained(TextClassifierConfig(**SIZES, pretrained=str(run.parent / "mlm-sib")))
    save(run, {"head.weight": torch.zeros(2)})
    with pytest.raises(ValueError, match="no text encoder: give a masked-lm run"):
        pretrained_weights(classifier().text_encoder, run)
    (run / "final" / "model.safetensors").unlink()
    with pytest.raises(Damaged, match=r"final.*model\.safetensors.*there are no undamaged ones"):
        check_pretrained(TextClassifierConfig(**SIZES, pretrained=str(run)))
    shutil.rmtree(run / "final")
    with pytest.raises(FileNotFoundError, match="no weights in"):
        check_pretrained(TextClassifierConfig(**SIZES, pretrained=str(run)))
