"""Exported models of vision and language load in a new process and read as their runs do."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")

from PIL import Image  # noqa: E402

from magneto.hf import export_model  # noqa: E402
from magneto.recipe import load_recipe  # noqa: E402
from magneto.vision.decoding import EncodedPicture  # noqa: E402
from magneto.vision.transforms import CentreCrop, Reading  # noqa: E402
from magneto.vision_language.caption_decoding import CaptionSearch  # noqa: E402
from magneto.vision_language.samples import (  # noqa: E402
    WholeImage,
    frame_text,
    join_samples,
)
from tests.hf.conftest import Newcomer  # noqa: E402

RECIPES = {
    "questions": "visual-question-answering/tiny",
    "statements": "visual-reasoning/tiny",
    "retrieval": "image-text-retrieval/tiny",
    "captions": "image-captioning/tiny",
    "masked-questions": "visual-question-answering/tiny",
    "masked-statements": "visual-reasoning/tiny",
    "first-retrieval": "image-text-retrieval/tiny",
    "pretraining": "vision-language-modelling/tiny",
}
POOLINGS = {"masked-questions": "mask_token", "masked-statements": "mask_token",
            "first-retrieval": "first"}  # fmt: skip
PRE = "pretraining"
TEXTS = ["what colour is the circle", "is there a red cross"]
PICTURES = ["wide.png", "high.png"]

LOADER = """
import json, sys
import torch, transformers
from PIL import Image
from safetensors.torch import save_file
pictures = [Image.open(name) for name in json.loads(sys.argv[2])]
texts, found = json.loads(sys.argv[3]), {}
for name, auto in json.loads(sys.argv[1]).items():
    model = getattr(transformers, auto).from_pretrained(name, trust_remote_code=True).eval()
    processor = transformers.AutoProcessor.from_pretrained(name, trust_remote_code=True)
    images = [pictures, pictures[::-1]] if name.endswith("statements") else pictures
    read = processor(images=images, text=texts, return_tensors="pt")
    with torch.no_grad():
        for key, value in model(**read).items():
            found[f"{name}.{key}"] = value.contiguous()
        if name == "captions":
            written = model.generate(read["pixel_values"], num_beams=2)
            written = processor.batch_decode(written, skip_special_tokens=True)
            print("captions:", json.dumps([text.strip() for text in written]))
    if name == "questions":
        best = found["questions.logits"].argmax(-1).tolist()
        print("questions:", json.dumps([model.config.id2label[number] for number in best]))
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


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pictures of two shapes."""
    folder = tmp_path_factory.mktemp("exported")
    random = np.random.default_rng(0)
    for name, shape in zip(PICTURES, ((40, 70, 3), (64, 50, 3)), strict=True):
        pixels = random.integers(0, 256, (shape[0] // 10, shape[1] // 10, 3), np.uint8)
        image = Image.fromarray(pixels).resize((shape[1], shape[0]), Image.Resampling.BILINEAR)
        image.save(folder / name)
    return folder


def make(name: str) -> tuple[Any, Any]:
    """A task, and a model of it in which no two numbers are alike."""
    changes: dict[str, Any] = {"model.width": 32, "model.layers": 2, "model.ffn_width": 48}
    changes |= {"model.pooling": POOLINGS[name]} if name in POOLINGS else {}
    task: Any = load_recipe(RECIPES[name], changes).build_task()
    task.prepare()
    torch.manual_seed(0)
    model = task.build_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return task, model.eval()


def resolved(task: Any, folder: Path) -> Any:
    """The data's configuration as it is in a run that keeps a tokenizer and answers."""
    folder.mkdir()
    tokenizer = task.data.tokenizer if hasattr(task, "data") else task.tokenizer
    tokenizer.save(folder)
    kept = {"tokenizer": str(folder)}
    if hasattr(task, "answers"):
        kept["answers"] = str(folder / "answers.json")
        Path(kept["answers"]).write_text(json.dumps(task.answers))
    return replace(task.data_config, **kept)


def as_read(name: str, task: Any, folder: Path) -> tuple[list[Any], Tensor, list[np.ndarray]]:
    """The pictures, and images and texts as the run's own code reads them."""
    config, tokenizer = task.model_config, task.data.tokenizer if name == PRE else task.tokenizer
    whole = WholeImage(Reading(config.image_size, config.channels, task.data_config.normalisation))
    transform = CentreCrop(whole.reading, config.image_size) if name == PRE else whole
    pictures = [EncodedPicture((folder / picture).read_bytes()) for picture in PICTURES]
    images = [transform(picture, np.random.default_rng(0)) for picture in pictures]
    closing = [tokenizer.mask] if name.startswith("masked") else []
    texts = [
        frame_text(ids, tokenizer, config.max_length, closing) for ids in tokenizer.encode(TEXTS)
    ]
    return pictures, torch.from_numpy(np.stack(images)), texts


@torch.no_grad()
def numbers(name: str, task: Any, model: Any, folder: Path) -> dict[str, Any]:
    """What the run's own code gives."""
    pictures, images, texts = as_read(name, task, folder)
    tokens = task.model_config.image_tokens
    samples = join_samples(tokens, paired=texts)
    if name == "masked-questions":
        return {"logits": model(images, samples)}
    if name == "questions":
        best = [task.predict(model, [(p, t)])[0] for p, t in zip(pictures, TEXTS, strict=True)]
        return {"logits": model(images, samples), "said": [one.labels[0][0] for one in best]}
    if name.endswith("statements"):
        pairs = torch.stack((images, images.flip(0))).flatten(0, 1)
        samples = join_samples(tokens, paired=[text for text in texts for _ in range(2)])
        return {"logits": model(pairs, samples)}
    if name.endswith("retrieval"):
        image, text, scale = model(images, join_samples(tokens, images=2, alone=texts))
        similar = scale * image @ text.T
        shares = dict(zip(TEXTS, similar[0].softmax(-1).tolist(), strict=True))
        said = {"said": shares} if name == "retrieval" else {}
        return {"image_embeds": image, "text_embeds": text, "logits_per_image": similar, **said}
    if name == "captions":
        return {"said": task.caption(model, pictures, CaptionSearch(beams=2))}
    vision, language = model.encoder(
        images, samples.token_ids, samples.token_positions, samples.packing
    )
    words = model.word_head(language).split([len(text) for text in texts])
    patches = model.patch_head(vision.unflatten(0, (2, tokens))[:, 1:])
    return {"image_logits": patches, "logits": nn.utils.rnn.pad_sequence(words, batch_first=True)}


def test_a_new_process_reads_and_answers_as_the_run_does(place: Path, newcomer: Newcomer) -> None:
    expected, autos = {}, {}
    for name in RECIPES:
        task, model = make(name)
        recipe = RECIPES[name].split("/")[0]
        data = resolved(task, place / f"{name}-kept")
        autos[name] = export_model(recipe, model, data, place / name)
        expected[name] = numbers(name, task, model, place)
    given = [json.dumps(each) for each in (autos, PICTURES, TEXTS)]
    printed = newcomer.run(place, LOADER, *given)
    said = {name: json.loads(line) for name, line in (line.split(": ", 1) for line in
                                                      printed.splitlines())}  # fmt: skip
    found = load_file(place / "found.safetensors")
    for name, values in expected.items():
        if isinstance(values.get("said"), dict):
            assert said[name] == pytest.approx(values["said"], abs=1e-4)
        else:
            assert said.get(name) == values.get("said")
        for key in values.keys() - {"said"}:
            difference = (found[f"{name}.{key}"] - values[key]).abs().max().item()
            print(f"exported {name}, {key}: largest difference {difference:.2e}")
            assert difference <= 1e-5 and values[key].std() > 1e-3
