"""Exported directories load in a new process, where nothing of ours is called, and say the same."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")
Image: Any = pytest.importorskip("PIL.Image")

from magneto import hf  # noqa: E402
from magneto.cli import main  # noqa: E402
from magneto.data import tokenizer as tokenizers  # noqa: E402
from magneto.hf.export import export_model, wrap  # noqa: E402
from magneto.hf.wrapper import MODULE, MODULE_SOURCE  # noqa: E402
from magneto.language import config as text_config  # noqa: E402
from magneto.language import models as text_models  # noqa: E402
from magneto.runs import load_run  # noqa: E402
from magneto.speech.decoding import GreedySearch  # noqa: E402
from magneto.speech.features import SpeechFeatures  # noqa: E402
from magneto.translation.config import TranslationConfig  # noqa: E402
from magneto.translation.model import TranslationModel  # noqa: E402
from magneto.vision.config import ImageClassificationDataConfig, ImageClassifierConfig  # noqa: E402
from magneto.vision.decoding import EncodedPicture  # noqa: E402
from magneto.vision.models import ImageClassifier  # noqa: E402
from magneto.vision.transforms import CentreCrop, InputFormat, validation_transform  # noqa: E402
from magneto.vision_language import config as pair_config  # noqa: E402
from magneto.vision_language import model as pair_model  # noqa: E402
from magneto.vision_language.caption_decoding import CaptionSearch, CaptionWriter  # noqa: E402
from magneto.vision_language.samples import WholeImage, frame_text, join_samples  # noqa: E402
from tests.unit.hf.kinds import export_text  # noqa: E402
from tests.unit.hf.test_segmentation import exported  # noqa: E402
from tests.unit.nn.grids import shaken  # noqa: E402
from tests.unit.speech.small import train_small  # noqa: E402

# Runs a program a line, each as if it were alone but for what is imported.
READER = """
import contextlib, io, json, os, sys, traceback
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for line in sys.stdin:
    given, said, error = json.loads(line), io.StringIO(), ""
    os.chdir(given["folder"])
    sys.argv = ["-c", *given["words"]]
    try:
        with contextlib.redirect_stdout(said):
            exec(compile(given["code"], "<newcomer>", "exec"), {"__name__": "__main__"})
    except BaseException:
        error = traceback.format_exc()
    training = [name for name in sys.modules if name.startswith("magneto.training")]
    print(json.dumps([said.getvalue(), error, training]), file=answers, flush=True)
"""


class Newcomer:
    """A process in which nothing of ours is called by name."""

    def __init__(self, home: Path) -> None:
        place = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", READER], cwd=home, env={**os.environ, **place}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def run(self, folder: Path, code: str, *words: str) -> str:
        """Run a program in a folder; return what it printed. It loads no code for training."""
        assert self.process.stdin is not None and self.process.stdout is not None
        line = json.dumps({"folder": str(folder), "code": code, "words": words})
        print(line, file=self.process.stdin, flush=True)
        printed, error, training = json.loads(self.process.stdout.readline())
        assert not error, error
        assert not training, training
        return printed


@pytest.fixture(scope="session")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Newcomer]:
    """The process, the same for all tests."""
    made = Newcomer(tmp_path_factory.mktemp("newcomer"))
    yield made
    made.process.communicate()


STACK: dict[str, Any] = {"width": 16, "layers": 2, "heads": 2, "ffn_width": 24}
TEXT = "A function that returns the number of bytes in a file, or raises an error. "
IDS = torch.randint(1, 300, (2, 7), generator=torch.Generator().manual_seed(1))
PIPELINES = {
    "AutoModelForCausalLM": "text-generation",
    "AutoModel": "feature-extraction",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForSeq2SeqLM": "",
    "AutoModelForSemanticSegmentation": "",
    "AutoModelForImageClassification": "image-classification",
}

# Loads directories by their Auto classes, twice (the second time what the first time saved), runs
# their pipelines, and writes what came out.
LOAD_MODELS = """
import json
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
inputs, found, said = load_file("inputs.safetensors"), {}, {}
asked = {"fill-mask": "A <mask> that", "image-classification": "asked.png"}
for name, (auto, task) in json.load(open("what.json")).items():
    load = getattr(transformers, auto).from_pretrained
    model = load(name, trust_remote_code=True)
    model.save_pretrained(name + "-again")
    again = load(name + "-again", trust_remote_code=True)
    read = inputs["images" if "Image" in auto or "Segmentation" in auto else "ids"]
    more = {"decoder_input_ids": read} if "seq2seq" in name else {}
    for made in (model, again):
        found[name + str(made is again)] = made.eval()(read, **more)[0].detach()
    if task:
        pipe = transformers.pipeline(task, model=name, trust_remote_code=True)
        said[name] = pipe(asked.get(task, "A function"))
load = transformers.AutoImageProcessor.from_pretrained
processor = load("classified", trust_remote_code=True)
read = processor(Image.open("asked.png"), return_tensors="pt")
found["pixel_values"] = read["pixel_values"]
save_file(found, "found.safetensors")
print(json.dumps({each["label"]: each["score"] for each in said["classified"]}))
"""


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    tokenizers.train_bpe([TEXT * 3], 300, path, tokenizers.SPECIAL)
    return tokenizers.load_tokenizer(path)


@torch.no_grad()
def test_models_of_texts_and_of_images_load_by_their_auto_class(
    tmp_path: Path, newcomer: Newcomer, bpe: Any
) -> None:
    """A classifier reads an image file as in validation, and names its classes."""
    text: dict[str, Any] = {**STACK, "vocab_size": bpe.vocab_size, "positions": "rotary"}
    made: dict[str, Any] = {
        "causal": text_models.LanguageModel(text_config.LanguageModelConfig(**text)),
        "masked": text_models.MaskedLanguageModel(text_config.MaskedLanguageModelConfig(**text)),
        "classes": text_models.TextClassifier(text_config.TextClassifierConfig(**text, classes=2)),
        "seq2seq": TranslationModel(TranslationConfig(**text, encoder_layers=1, decoder_layers=1)),
    }
    how = {"masked": hf.MASKED, "classes": hf.EncoderInput("$A", "$A $B")}
    autos = {"seq2seq": "AutoModelForSeq2SeqLM", "encoder": "AutoModel",
             "masks": "AutoModelForSemanticSegmentation"}  # fmt: skip
    wrap(shaken(made["seq2seq"]), end=0).save_pretrained(tmp_path / "seq2seq")
    for name in ("causal", "masked", "classes"):
        autos[name] = export_text(shaken(made[name]), bpe, tmp_path / name, 32, how.get(name))
    made["encoder"] = made["masked"].text_encoder
    shutil.copytree(tmp_path / "masked", tmp_path / "encoder")
    _, segmenter = exported(tmp_path / "masks")
    sizes = ImageClassifierConfig(**STACK, image_size=16, patch_size=8, channels=3, classes=4)
    names = ("apple", "grass", "sky")
    data = ImageClassificationDataConfig(normalisation="imagenet", classes=names)
    made["classified"] = shaken(ImageClassifier(sizes))
    autos["classified"] = export_model(
        "image-classification", made["classified"], data, tmp_path / "classified"
    )
    asked = Image.new("RGB", (42, 26), "blue")
    asked.paste("red", (0, 0, 14, 26))
    asked.save(tmp_path / "asked.png")
    what = {name: (auto, PIPELINES[auto]) for name, auto in autos.items()}
    (tmp_path / "what.json").write_text(json.dumps(what))
    images = torch.randn(2, 3, 16, 16)
    save_file({"ids": IDS, "images": images}, tmp_path / "inputs.safetensors")
    results = json.loads(newcomer.run(tmp_path, LOAD_MODELS))
    found = load_file(tmp_path / "found.safetensors")
    for name, model in made.items():
        expected = model(*{"seq2seq": (IDS, IDS), "classified": (images,)}.get(name, (IDS,)))
        assert torch.equal(found[f"{name}False"], expected), name
        assert torch.equal(found[f"{name}True"], expected), name
    large = nn.functional.interpolate(segmenter(images).main, (16, 16), mode="bilinear")
    for again in (False, True):
        torch.testing.assert_close(found[f"masks{again}"], large, rtol=1e-5, atol=1e-4)
    transform: Any = validation_transform(data, InputFormat(16, 3, "imagenet"))
    picture = EncodedPicture((tmp_path / "asked.png").read_bytes())
    pixels = torch.from_numpy(transform(picture, None))[None]
    assert torch.equal(found["pixel_values"], pixels)
    shares = made["classified"](pixels).softmax(1)[0].tolist()
    assert results == pytest.approx(dict(zip((*names, "3"), shares, strict=True)), abs=1e-5)


NO_CODE = """
import io, sys
import transformers
sys.stdin = io.StringIO()  # nobody answers a question
for trust in (False, None):
    made = transformers.AutoTokenizer.from_pretrained("out", trust_remote_code=trust)
    print(type(made).__module__.split(".")[0], made("A function").input_ids)
made = transformers.AutoTokenizer.from_pretrained("pieces", trust_remote_code=True)
made.save_pretrained("again")
made = transformers.AutoTokenizer.from_pretrained("again", trust_remote_code=True)
print(made("lazy dogs").input_ids)
"""


def test_tokenizers_load_by_their_auto_class(tmp_path: Path, newcomer: Newcomer, bpe: Any) -> None:
    """That of a BPE needs no code; SentencePiece's does."""
    pytest.importorskip("sentencepiece")
    lines = [f"The quick brown fox {number} jumps over the lazy dog." for number in range(200)]
    (tmp_path / "sp.model").write_bytes(tokenizers.train_sentencepiece(lines, "bpe", 300, 200))
    pieces = tokenizers.load_tokenizer(tmp_path / "sp.model")
    for tokenizer, name in ((bpe, "out"), (pieces, "pieces")):
        config = text_config.LanguageModelConfig(**STACK, vocab_size=tokenizer.vocab_size)
        export_text(text_models.LanguageModel(config), tokenizer, tmp_path / name, 32)
    (tmp_path / "out" / f"{MODULE}.py").write_text("raise RuntimeError('it was run')")
    printed = newcomer.run(tmp_path, NO_CODE)
    assert printed.count(f"transformers {bpe.encode(['A function'])[0]}") == 2
    assert json.loads(printed.splitlines()[-1]) == pieces.encode(["lazy dogs"])[0]


def test_without_the_package_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / f"{MODULE}.py").write_text(MODULE_SOURCE)
    hidden = f"import sys; sys.modules['magneto'] = None; import {MODULE}"
    words = [sys.executable, "-c", hidden]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "pip install 'foundation-transformers[hf]'" in done.stderr.splitlines()[-1]


def test_as_many_labels_as_classes(tmp_path: Path) -> None:
    model = ImageClassifier(ImageClassifierConfig(**STACK, image_size=8, patch_size=4, classes=3))
    with pytest.raises(ValueError, match="2 class names for 3 classes"):
        hf.save_export(model, tmp_path / "out", hf.Assets(hf.class_names(["a", "b"])))
    assert not (tmp_path / "out").exists()


LOAD_SPEECH = """
import sys, numpy as np, torch
from transformers import AutoFeatureExtractor, AutoModel, AutoTokenizer
place = sys.argv[1]
trusted = {"trust_remote_code": True}
model = AutoModel.from_pretrained(place, **trusted).eval()
extractor = AutoFeatureExtractor.from_pretrained(place, **trusted)
tokenizer = AutoTokenizer.from_pretrained(place, **trusted)
sounds = list(np.load(sys.argv[2]).values())
given = extractor(sounds, sampling_rate=8000, return_tensors="pt")
features = model(**given).last_hidden_state
texts = tokenizer.batch_decode(model.transcribe(**given))
np.savez(sys.argv[3], *[texts, features.detach().numpy()])
"""


@torch.no_grad()
def test_a_new_process_hears_the_same(tmp_path: Path, newcomer: Newcomer) -> None:
    pytest.importorskip("jiwer")
    with torch.enable_grad():
        run = train_small(tmp_path / "run")
    assert main(["export", str(run), str(tmp_path / "hf")]) == 0
    random = np.random.default_rng(0)
    sounds = [random.standard_normal(n).astype(np.float32) for n in (8000, 5000)]
    np.savez(tmp_path / "sounds.npz", *sounds)
    files = [str(tmp_path / name) for name in ("hf", "sounds.npz", "found.npz")]
    newcomer.run(tmp_path, LOAD_SPEECH, *files)
    found = np.load(tmp_path / "found.npz")
    opened: Any = load_run(run, "auto", {})
    features = SpeechFeatures(opened.recipe.data)
    for row, sound in enumerate(sounds):
        heard = torch.from_numpy(features(sound))[None]
        encoded, lengths = opened.model.encode(heard, torch.tensor([heard.shape[1]]))
        labels = GreedySearch()(opened.model, encoded, lengths)[0][0].labels
        count = int(lengths[0])
        np.testing.assert_allclose(found["arr_1"][row, :count], encoded[0].numpy(), atol=1e-4)
        assert found["arr_0"][row].split() == opened.task.vocabulary.decode(labels).split()


PAIRS: dict[str, Any] = {
    **STACK, "image_size": 16, "patch_size": 8, "max_length": 12, "vocab_size": 300,
}  # fmt: skip
# Of each: its task, its model and configuration, and what it has besides.
QUESTIONS = ("visual-question-answering", pair_model.QuestionAnswerer,
             pair_config.QuestionAnsweringConfig)  # fmt: skip
MODELS: dict[str, tuple[str, Any, Any, dict[str, Any]]] = {
    "questions": (*QUESTIONS, {"answers": 3}),
    "masked-questions": (*QUESTIONS, {"answers": 3, "pooling": "mask_token"}),
    "statements": (
        "visual-reasoning", pair_model.VisualReasoner, pair_config.VisualReasonerConfig, {}),
    "retrieval": ("image-text-retrieval", pair_model.ImageTextRetriever,
                  pair_config.ImageTextRetrieverConfig, {}),
    "captions": (
        "image-captioning", pair_model.ImageCaptioner, pair_config.ImageCaptionerConfig, {}),
    "pretraining": ("vision-language-modelling", pair_model.MaskedDataModel,
                    pair_config.MaskedDataModelConfig, {"codes": 6}),
}  # fmt: skip
ANSWERS = ["blue", "red", "two"]
TEXTS = ["what is a function", "a file or an error"]
PICTURES = ["wide.png", "high.png"]

LOAD_PAIRS = """
import json, sys
import torch, transformers
from PIL import Image
from safetensors.torch import save_file
pictures = [Image.open(name) for name in json.loads(sys.argv[2])]
texts, found = json.loads(sys.argv[3]), {}
for name, auto in json.loads(sys.argv[1]).items():
    model = getattr(transformers, auto).from_pretrained(name, trust_remote_code=True).eval()
    processor = transformers.AutoProcessor.from_pretrained(name, trust_remote_code=True)
    images = [pictures, pictures[::-1]] if name == "statements" else pictures
    read = processor(images=images, text=texts, return_tensors="pt")
    with torch.no_grad():
        for key, value in model(**read).items():
            found[f"{name}.{key}"] = value.contiguous()
        if name == "captions":
            written = model.generate(read["pixel_values"], num_beams=2)
            written = processor.batch_decode(written, skip_special_tokens=True)
            print("captions:", json.dumps([text.strip() for text in written]))
    if name == "questions":
        print("questions:", json.dumps(list(model.config.id2label.values())))
    if name == "retrieval":
        pipe = transformers.pipeline(
            "zero-shot-image-classification", model=name, trust_remote_code=True
        )
        shares = pipe(pictures[0], candidate_labels=texts, hypothesis_template="{}")
        print("retrieval:", json.dumps({share["label"]: share["score"] for share in shares}))
    model.save_pretrained(name + "-again")
    processor.save_pretrained(name + "-again")
    again = getattr(transformers, auto).from_pretrained(name + "-again", trust_remote_code=True)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters()))
save_file(found, "found.safetensors")
"""


def write_pictures(folder: Path) -> list[EncodedPicture]:
    """Write pictures of two shapes, and return them."""
    random = np.random.default_rng(0)
    for name, shape in zip(PICTURES, ((4, 7, 3), (6, 5, 3)), strict=True):
        image = Image.fromarray(random.integers(0, 256, shape, np.uint8))
        image.resize((shape[1] * 10, shape[0] * 10)).save(folder / name)
    return [EncodedPicture((folder / name).read_bytes()) for name in PICTURES]


@torch.no_grad()
def answers_of(name: str, model: Any, bpe: Any, pictures: list[Any]) -> dict[str, Any]:
    """What the model says of pictures and texts, which are read as a run's own code reads them."""
    config = model.config
    whole: Any = WholeImage(InputFormat(16, 3, "imagenet"))
    transform: Any = CentreCrop(whole.input_format, 20) if name == "pretraining" else whole
    images = torch.from_numpy(np.stack([transform(one, None) for one in pictures]))
    closing = [bpe.mask] if name.startswith("masked") else []
    texts = [frame_text(ids, bpe, config.max_length, closing) for ids in bpe.encode(TEXTS)]
    tokens = config.image_tokens
    samples = join_samples(tokens, paired=texts)
    if name.endswith("questions"):
        return {"logits": model(images, samples)}
    if name == "statements":
        pairs = torch.stack((images, images.flip(0))).flatten(0, 1)
        samples = join_samples(tokens, paired=[text for text in texts for _ in range(2)])
        return {"logits": model(pairs, samples)}
    if name == "retrieval":
        image, text, scale = model(images, join_samples(tokens, images=2, alone=texts))
        similar = scale * image @ text.T
        shares = dict(zip(TEXTS, similar[0].softmax(-1).tolist(), strict=True))
        return {"image_embeds": image, "text_embeds": text, "logits_per_image": similar,
                "answers": shares}  # fmt: skip
    if name == "captions":
        found = CaptionWriter(model, config, bpe).search(images, CaptionSearch(beams=2))
        return {"answers": [bpe.decode(tokens).strip() for tokens in found]}
    vision, language = model.encoder(images, samples)
    words = language.split([len(text) for text in texts])
    patches = model.patch_head(vision.unflatten(0, (2, tokens))[:, 1:])
    logits = model.word_head(nn.utils.rnn.pad_sequence(words, batch_first=True))
    return {"image_logits": patches, "logits": logits}


def test_a_new_process_reads_and_answers_as_the_run_does(
    tmp_path: Path, newcomer: Newcomer, bpe: Any
) -> None:
    pictures = write_pictures(tmp_path)
    bpe.save(tmp_path)
    (tmp_path / "answers.json").write_text(json.dumps(ANSWERS))
    data = SimpleNamespace(tokenizer=str(tmp_path), answers=str(tmp_path / "answers.json"),
                           normalisation="imagenet", resize=20)  # fmt: skip
    expected: dict[str, dict[str, Any]] = {}
    autos = {}
    for name, (task, kind, config, more) in MODELS.items():
        model = shaken(kind(config(**PAIRS, **more)))
        autos[name] = export_model(task, model, data, tmp_path / name)
        expected[name] = answers_of(name, model, bpe, pictures)
    expected["questions"]["answers"] = ANSWERS
    given = [json.dumps(each) for each in (autos, PICTURES, TEXTS)]
    printed = newcomer.run(tmp_path, LOAD_PAIRS, *given)
    results = {name: json.loads(line) for name, line in (line.split(": ", 1) for line in
                                                      printed.splitlines())}  # fmt: skip
    found: dict[str, Tensor] = load_file(tmp_path / "found.safetensors")
    for name, values in expected.items():
        if isinstance(values.get("answers"), dict):
            assert results[name] == pytest.approx(values["answers"], abs=1e-4)
        else:
            assert results.get(name) == values.get("answers")
        for key in values.keys() - {"answers"}:
            difference = (found[f"{name}.{key}"] - values[key]).abs().max().item()
            print(f"exported {name}, {key}: largest difference {difference:.2e}")
            assert difference <= 1e-5 and values[key].std() > 1e-3
