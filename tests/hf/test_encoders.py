"""Our text encoder inside transformers."""

from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

from magneto import hf  # noqa: E402
from magneto.models.masked_language import (  # noqa: E402
    MaskedLanguageModel,
    MaskedLanguageModelConfig,
)


def core(**changes) -> MaskedLanguageModel:
    torch.manual_seed(0)
    values = {
        "width": 32, "layers": 2, "heads": 4, "ffn_width": 48, "vocab_size": 300,
        "positions": "learned", "token_types": 2,
    }  # fmt: skip
    model = MaskedLanguageModel(MaskedLanguageModelConfig(**(values | changes))).eval()
    torch.nn.init.normal_(model.head.vocabulary.bias)
    return model


def wrap(model: MaskedLanguageModel) -> "hf.MagnetoForMaskedLM":
    return hf.MagnetoForMaskedLM(hf.MagnetoEncoderConfig.of(model.config, end=0), model).eval()


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
