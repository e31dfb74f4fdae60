"""A model begins with the encoder of a run, reads as it did, and says what it took."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from magneto.data.tokenizer import load_tokenizer
from magneto.files import read_json
from magneto.training.logging import PLATEAU_FILE
from magneto.vision_language.config import FineTunedConfig
from magneto.vision_language.model import VisionLanguageEncoder
from magneto.vision_language.pretrained import load_pretrained, pretrained_reading
from magneto.weights import open_tensors
from tests.unit.vision_language.trained import SMALL, train_model


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("tokenizers")
    place = tmp_path_factory.mktemp("pretrained") / "sub"
    train_model(place, training__steps=1)
    return place


class Answers(nn.Module):
    """An encoder and a head."""

    def __init__(self, config: FineTunedConfig) -> None:
        super().__init__()
        self.encoder = VisionLanguageEncoder(config)
        self.head = nn.Linear(config.width, 3)


def shape(run: Path, **changes: Any) -> FineTunedConfig:
    size = load_tokenizer(pretrained_reading(FineTunedConfig(pretrained=str(run))).tokenizer)
    small = {key.removeprefix("model."): value for key, value in SMALL.items()
             if key.startswith("model.") and key != "model.codes"}  # fmt: skip
    given = {"vocab_size": size.vocab_size}
    return FineTunedConfig(**{**given, **small, "pretrained": str(run), **changes})


def test_it_begins_with_the_runs_weights(run: Path) -> None:
    config = shape(run)
    with torch.device("meta"):
        model = Answers(config)
    found = load_pretrained(model, config)
    stored = open_tensors(run / "final")
    assert set(found.weights) == {n for n in model.state_dict() if n.startswith("encoder.")}
    for name, tensor in found.weights.items():
        assert torch.equal(tensor.read(), stored[name].read()), name
    assert found.missing == ["head.weight", "head.bias"]
    assert found.unused == ["encoder.vision_embedding.mask_token.vector", "patch_head.bias",
                            "patch_head.weight", "word_head.bias", "word_head.weight"]  # fmt: skip
    assert "drawn anew: head.weight, head.bias; left: encoder.vision" in found.describe()


def test_another_size_of_images_and_shorter_texts(run: Path) -> None:
    config = shape(run, image_size=40, max_length=20, final_norm="none",
                   pretrained=str(run.parent / "{placement}"))  # fmt: skip
    model = Answers(config)
    found = load_pretrained(model, config)
    model.load_state_dict({n: t.read() for n, t in found.weights.items()}, strict=False)
    assert model.encoder.vision_embedding.positions.weight.shape == (26, config.width)
    assert len([name for name in found.unused if "final_norm" in name]) == 4


def test_a_run_that_others_begin_with_keeps_what_frequencies_score(run: Path) -> None:
    assert read_json(run / PLATEAU_FILE)["loss"] > 1


def test_how_it_reads(run: Path) -> None:
    reading = pretrained_reading(shape(run))
    tokenizer = load_tokenizer(reading.tokenizer)
    assert reading.normalisation == "half"
    assert tokenizer.decode(tokenizer.encode(["a red circle"])[0]) == "a red circle"


def test_what_does_not_fit(run: Path, tmp_path: Path) -> None:
    def load(**changes: Any) -> None:
        config = shape(run, **changes)
        with torch.device("meta"):
            model = Answers(config)
        load_pretrained(model, config)

    with pytest.raises(ValueError, match=r"give --model.layers 2 --model.placement sub"):
        load(layers=3, placement="pre")
    with pytest.raises(ValueError, match=r"--model.max_length 40 or less"):
        load(max_length=41)
    with pytest.raises(ValueError, match=r"words.table.weight is \(\d+, 16\), the model has"):
        load(vocab_size=300)
    with pytest.raises(FileNotFoundError, match=r"no run in .*; did you mean .*sub\?"):
        pretrained_reading(FineTunedConfig(pretrained=str(run.parent / "subb")))
    other = tmp_path / "other"
    other.mkdir()
    words = (run / "recipe.yaml").read_text().partition("\nmodel:")[0]
    words = words.replace("vision-language-modelling", "masked-lm")
    words += (
        "\nmodel: {width: 16, heads: 2}\ndata: {}\ntraining: {}\nlearning_rates: {default: 1}\n"
    )
    (other / "recipe.yaml").write_text(words)
    with pytest.raises(ValueError, match="no run of vision and language"):
        pretrained_reading(FineTunedConfig(pretrained=str(other)))
