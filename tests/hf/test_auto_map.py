"""An exported directory loads in a new process, where nothing of ours is called."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

transformers = pytest.importorskip("transformers")

from magneto import hf  # noqa: E402
from magneto.data.tokenizer import SPECIAL, load_tokenizer, train_bpe  # noqa: E402
from magneto.hf.auto_map import MODULE, MODULE_SOURCE  # noqa: E402
from magneto.hf.export import wrap  # noqa: E402
from magneto.language.config import (  # noqa: E402
    LanguageModelConfig,
    MaskedLanguageModelConfig,
    TextClassifierConfig,
)
from magneto.language.models import LanguageModel, MaskedLanguageModel, TextClassifier  # noqa: E402
from magneto.translation.config import TranslationConfig  # noqa: E402
from magneto.translation.model import TranslationModel  # noqa: E402
from magneto.vision.classifier import ImageClassifier  # noqa: E402
from magneto.vision.config import ImageClassifierConfig  # noqa: E402
from tests.hf.conftest import Newcomer  # noqa: E402

STACK: dict[str, Any] = {"width": 16, "layers": 2, "heads": 2, "ffn_width": 24}
TEXT = "A function that returns the number of bytes in a file, or raises an error. "
IDS = torch.randint(1, 300, (2, 7), generator=torch.Generator().manual_seed(1))
PIXELS = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))
TASKS = {
    "AutoModelForCausalLM": "text-generation",
    "AutoModel": "feature-extraction",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForSeq2SeqLM": "",
    "AutoModelForImageClassification": "image-classification",
}
INPUTS = {"fill-mask": "A <mask> that", "image-classification": "picture.png"}

# Loads directories by their Auto classes, twice (the second time what the first time saved), runs
# their pipelines, and writes what came out.
LOADER = """
import json, sys
import transformers
from safetensors.torch import load_file, save_file
inputs, found = load_file("inputs.safetensors"), {}
for name, (auto, task, given) in json.load(open("what.json")).items():
    load = getattr(transformers, auto).from_pretrained
    model = load(name, trust_remote_code=True)
    model.save_pretrained(name + "-again")
    again = load(name + "-again", trust_remote_code=True)
    read = inputs["pixels" if "image" in name else "ids"]
    more = {"decoder_input_ids": read} if "seq2seq" in name else {}
    for made in (model, again):
        found[name + str(made is again)] = made.eval()(read, **more)[0].detach()
    if task:
        pipe = transformers.pipeline(task, model=name, trust_remote_code=True)
        print(name, json.dumps(pipe(given)))
save_file(found, "found.safetensors")
"""


HIDDEN = """
import sys
class Hidden:
    def find_spec(name, *_):
        if name == "magneto":
            raise ModuleNotFoundError("hidden", name=name)
sys.meta_path.insert(0, Hidden)
"""


def filled(model: Any) -> Any:
    """Let no number of a model be the same as another."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def export_all(folder: Path) -> dict[str, tuple[Any, str]]:
    """Export a model of every kind; return each, and the Auto class that loads it."""
    torch.manual_seed(0)
    train_bpe([TEXT * 3], 300, folder / "tokenizer.json", SPECIAL)
    tokenizer: Any = load_tokenizer(folder / "tokenizer.json")
    text: dict[str, Any] = {**STACK, "vocab_size": tokenizer.vocab_size, "positions": "rotary"}
    made: dict[str, Any] = {
        "causal": LanguageModel(LanguageModelConfig(**text)),
        "masked": MaskedLanguageModel(MaskedLanguageModelConfig(**text)),
        "classes": TextClassifier(TextClassifierConfig(**text, classes=2)),
        "image": ImageClassifier(
            ImageClassifierConfig(**STACK, image_size=8, patch_size=4, channels=1, classes=3)
        ),
        "seq2seq": TranslationModel(TranslationConfig(**text, encoder_layers=1, decoder_layers=1)),
    }
    autos = {}
    for name, model in made.items():
        place = folder / name
        if name == "image":
            autos[name] = hf.export_images(filled(model), place, ["no", "maybe", "yes"])
        elif name == "seq2seq":
            wrap(filled(model), end=0).save_pretrained(place)
            autos[name] = "AutoModelForSeq2SeqLM"
        else:
            how = {"masked": hf.MASKED, "classes": hf.EncoderInput("$A", "$A $B", 0, ["a", "b"])}
            autos[name] = hf.export_text(filled(model), tokenizer, place, 32, how.get(name))
    made["encoder"], autos["encoder"] = made["masked"].text_encoder, "AutoModel"
    shutil.copytree(folder / "masked", folder / "encoder")
    return {name: (model, autos[name]) for name, model in made.items()}


def test_every_kind_of_model_loads_by_its_auto_class(tmp_path: Path, newcomer: Newcomer) -> None:
    image = pytest.importorskip("PIL.Image")
    made = export_all(tmp_path)
    grey = np.arange(0, 256, 4, dtype=np.uint8).reshape(8, 8)
    image.fromarray(grey).save(tmp_path / "picture.png")
    what = {
        name: (auto, TASKS[auto], INPUTS.get(TASKS[auto], "A function"))
        for name, (_, auto) in made.items()
    }
    (tmp_path / "what.json").write_text(json.dumps(what))
    save_file({"ids": IDS, "pixels": PIXELS}, tmp_path / "inputs.safetensors")
    printed = newcomer.run(tmp_path, LOADER)
    found = load_file(tmp_path / "found.safetensors")
    for name, (model, _) in made.items():
        read = (IDS, IDS) if name == "seq2seq" else (PIXELS,) if name == "image" else (IDS,)
        for again in (False, True):
            assert torch.equal(found[f"{name}{again}"], model(*read)), (name, again)
    said = dict(line.split(" ", 1) for line in printed.splitlines())
    shares = {each["label"]: each["score"] for each in json.loads(said["image"])}
    pixels = torch.from_numpy(grey).float()[None, None] / 127.5 - 1
    expected = made["image"][0](pixels).softmax(-1)[0].tolist()
    assert [shares[name] for name in ("no", "maybe", "yes")] == pytest.approx(expected, abs=1e-5)


def test_a_sentencepiece_tokenizer_loads_by_its_auto_class(
    tmp_path: Path, newcomer: Newcomer
) -> None:
    pytest.importorskip("sentencepiece")
    from magneto.data.tokenizer_training import train_sentencepiece

    lines = [f"The quick brown fox {number} jumps over the lazy dog." for number in range(200)]
    (tmp_path / "sp.model").write_bytes(train_sentencepiece(lines, "bpe", 300, 200))
    tokenizer = load_tokenizer(tmp_path / "sp.model")
    model = LanguageModel(LanguageModelConfig(**STACK, vocab_size=300))
    hf.export_text(model, tokenizer, tmp_path / "out", 32)
    load = "transformers.AutoTokenizer.from_pretrained({!r}, trust_remote_code=True)"
    code = f"import transformers; made = {load.format('out')}; made.save_pretrained('again'); "
    said = newcomer.run(tmp_path, f"{code}print({load.format('again')}('lazy dogs').input_ids)")
    assert json.loads(said) == tokenizer.encode(["lazy dogs"])[0]


def test_without_the_package_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / f"{MODULE}.py").write_text(MODULE_SOURCE)
    words = [sys.executable, "-c", f"{HIDDEN}import {MODULE}"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "pip install 'foundation-transformers[hf]'" in done.stderr.splitlines()[-1]


def test_pictures_become_what_the_model_reads() -> None:
    image = pytest.importorskip("PIL.Image")
    grey, colour = hf.MagnetoImageProcessor(8, 1), hf.MagnetoImageProcessor(4, 3)
    array = np.arange(0, 256, 4, dtype=np.uint8).reshape(8, 8)
    expected = (torch.from_numpy(array).float() - 127.5) / 127.5
    for picture in (array, image.fromarray(array), image.fromarray(array).convert("RGB")):
        found = grey(picture, return_tensors="pt")["pixel_values"]
        assert torch.equal(found, expected[None, None])
    found = colour([array, array], return_tensors="pt")["pixel_values"]
    assert found.shape == (2, 3, 4, 4) and found.min() >= -1 and found.max() <= 1
    wide = hf.MagnetoImageProcessor(4, 1, resize=8)(np.repeat(array, 2, 1), return_tensors="pt")
    assert torch.equal(wide["pixel_values"][0, 0], expected.repeat_interleave(2, 1)[2:6, 6:10])
    with pytest.raises(TypeError, match="uint8, not of float64"):
        grey(array / 255)
    with pytest.raises(ValueError, match="1 or 3 channels, not 2"):
        hf.MagnetoImageProcessor(8, 2)


def test_as_many_labels_as_classes(tmp_path: Path) -> None:
    model = ImageClassifier(ImageClassifierConfig(**STACK, image_size=8, patch_size=4, classes=3))
    with pytest.raises(ValueError, match="2 labels for 3 classes"):
        hf.export_images(model, tmp_path / "out", ["a", "b"])
    assert not (tmp_path / "out").exists()
