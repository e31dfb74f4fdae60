"""Our text encoder inside transformers."""

from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

from magneto import hf  # noqa: E402
from magneto.hf.export import wrap  # noqa: E402
from magneto.language.config import MaskedLanguageModelConfig, TextClassifierConfig  # noqa: E402
from magneto.language.models import MaskedLanguageModel, TextClassifier  # noqa: E402


def core(**changes) -> MaskedLanguageModel:
    torch.manual_seed(0)
    values = {
        "width": 32, "layers": 2, "heads": 4, "ffn_width": 48, "vocab_size": 300,
        "positions": "learned", "token_types": 2,
    }  # fmt: skip
    model = MaskedLanguageModel(MaskedLanguageModelConfig(**(values | changes))).eval()
    torch.nn.init.normal_(model.head.vocabulary.bias)
    return model


def ids(rows: int = 2, length: int = 9) -> torch.Tensor:
    return torch.randint(1, 300, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("tied", [True, False])
def test_round_trip(tmp_path: Path, tied: bool) -> None:
    hf.register()
    model = core(tie_embeddings=tied)
    wrap(model).save_pretrained(tmp_path)
    loaded = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, -3:] = 0
    types = ids() % 2
    given = {"attention_mask": mask, "token_type_ids": types}
    expected = model(ids(), mask.bool(), token_types=types)
    assert torch.equal(loaded(ids(), **given).logits, expected)
    assert (loaded.head.vocabulary.weight is loaded.core.embedding.table.weight) == tied
    features = transformers.AutoModel.from_pretrained(tmp_path).eval()(ids(), **given)
    expected = model.text_encoder(ids(), mask.bool(), types)
    assert torch.equal(features.last_hidden_state, expected)


def test_loss() -> None:
    wrapped = wrap(core())
    labels = ids()
    labels[0, :4] = -100
    output = wrapped(ids(), labels=labels)
    expected = torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten())
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_vocabulary_that_grew() -> None:
    wrapped = wrap(core())
    wrapped.resize_token_embeddings(310, mean_resizing=False)
    assert wrapped(ids()).logits.shape[-1] == 310
    assert wrapped.head.vocabulary.bias.shape == (310,)


def test_hidden_states() -> None:
    wrapped = wrap(core())
    output = wrapped(ids(), output_hidden_states=True)
    assert len(output.hidden_states) == 3
    assert torch.equal(output.hidden_states[-1], wrapped.core(ids()))
    assert torch.equal(wrapped.head(output.hidden_states[-1]), output.logits)
    assert wrapped(ids()).hidden_states is None
    assert isinstance(wrapped(ids(), return_dict=False), tuple)


def classifier(classes: int = 3, **changes) -> TextClassifier:
    torch.manual_seed(0)
    values = {
        "width": 32, "layers": 2, "heads": 4, "ffn_width": 48, "vocab_size": 300,
        "positions": "learned", "token_types": 2, "head_dropout": 0.2,
    }  # fmt: skip
    return TextClassifier(TextClassifierConfig(classes=classes, **(values | changes))).eval()


def test_a_classifier_there_and_back(tmp_path: Path) -> None:
    hf.register()
    model = classifier()
    labels = {0: "yes", 1: "no", 2: "perhaps"}
    wrap(model, id2label=labels).save_pretrained(tmp_path)
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, -3:] = 0
    types = ids() % 2
    output = loaded(ids(), attention_mask=mask, token_type_ids=types, labels=torch.tensor([0, 2]))
    assert torch.equal(output.logits, model(ids(), mask.bool(), types))
    expected = torch.nn.functional.cross_entropy(output.logits, torch.tensor([0, 2]))
    assert output.loss.item() == pytest.approx(expected.item())
    assert loaded.config.id2label == labels and loaded.classifier.dropout.p == 0.2
    again = loaded.unwrap()
    assert again.config.classes == 3 and torch.equal(again(ids()), model(ids()))


def test_regression() -> None:
    wrapped = wrap(classifier(classes=1), problem_type="regression").eval()
    output = wrapped(ids(), labels=torch.tensor([0.5, -1.0]))
    expected = ((output.logits[:, 0] - torch.tensor([0.5, -1.0])) ** 2).mean()
    assert output.loss.item() == pytest.approx(expected.item())


def test_a_masked_language_models_directory_fine_tunes_with_a_new_head(tmp_path: Path) -> None:
    """transformers makes what is missing from uninitialised memory, and asks us to draw it."""
    hf.register()
    model = core()
    wrap(model).save_pretrained(tmp_path)
    load = transformers.AutoModelForSequenceClassification.from_pretrained
    loaded = load(tmp_path, num_labels=4)
    held = model.text_encoder.state_dict()
    assert all(torch.equal(loaded.core.state_dict()[name], t) for name, t in held.items())
    head = loaded.classifier
    assert head.answer.weight.shape == (4, 32)
    assert 0.015 < head.answer.weight.std() < 0.025 and not head.answer.bias.any()
    assert 0.15 < head.dense.weight.std() < 0.2 and not head.dense.bias.any()
    assert not torch.equal(load(tmp_path, num_labels=4).classifier.dense.weight, head.dense.weight)


def test_an_encoders_directory_takes_a_new_masked_language_head(tmp_path: Path) -> None:
    wrap(core().text_encoder).save_pretrained(tmp_path)
    loaded = hf.MagnetoForMaskedLM.from_pretrained(tmp_path)
    assert loaded.head.vocabulary.weight is loaded.core.embedding.table.weight
    assert not loaded.head.vocabulary.bias.any() and (loaded.head.norm.weight == 1).all()
    assert 0.15 < loaded.head.dense.weight.std() < 0.2


def test_a_directory_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    wrap(core()).save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    del state["core.encoder.layers.1.feed_forward.mlp.fc1.weight"]
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="the weights lack weight of a Projection"):
        hf.MagnetoForMaskedLM.from_pretrained(tmp_path)


def test_rows_of_a_table_that_grew_are_drawn_as_the_others() -> None:
    wrapped = wrap(core())
    wrapped.resize_token_embeddings(2000, mean_resizing=False)
    grown = wrapped.core.embedding.table.weight[300:]
    assert grown.std().item() == pytest.approx(32**-0.5, rel=0.05)
    assert not wrapped.head.vocabulary.bias[300:].any()
