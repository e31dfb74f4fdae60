"""`magneto convert`: conversion in both directions, and mistakes."""

import io
import json
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

transformers = pytest.importorskip("transformers")

from magneto.cli import main  # noqa: E402
from magneto.commands.convert import FORMATS  # noqa: E402
from magneto.data.tokenizer import load_tokenizer, train_bpe  # noqa: E402
from magneto.hf.conversion import (  # noqa: E402
    NAMES,
    WRITTEN,
    save_weight_file,
    write_weights,
)
from magneto.hf.export import wrap  # noqa: E402
from magneto.hf.processors import transformers_tokenizer  # noqa: E402
from magneto.language.config import LanguageModelConfig  # noqa: E402
from magneto.language.models import LanguageModel  # noqa: E402
from magneto.vision.config import ImageClassifierConfig  # noqa: E402
from magneto.vision.models import ImageClassifier  # noqa: E402
from magneto.vision_language.config import (  # noqa: E402
    QuestionAnsweringConfig,
    VisualReasonerConfig,
)
from magneto.vision_language.model import QuestionAnswerer, VisualReasoner  # noqa: E402
from tests.commands import refused  # noqa: E402
from tests.oracles.test_hf_beit3_tokenizer import train as train_spm  # noqa: E402

SIZES: dict[str, Any] = {"width": 32, "layers": 2, "heads": 4, "ffn_width": 48}


def run(*words: object) -> int:
    return main(["convert", *map(str, words)])


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 with its tokenizer, in the hub's format."""
    folder = tmp_path_factory.mktemp("gpt2")
    train_bpe(["the cat sat on the mat " * 20], 280, folder / "trained.json")
    tokenizer = load_tokenizer(folder / "trained.json")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_positions=40, n_embd=32, n_layer=2, n_head=4, vocab_size=tokenizer.vocab_size,
        bos_token_id=tokenizer.end, eos_token_id=tokenizer.end,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    model.generation_config.repetition_penalty = 5.0  # stays
    model.save_pretrained(folder / "model")
    transformers_tokenizer(tokenizer, 40).save_pretrained(folder / "model")
    return folder / "model"


def test_gpt2_there_and_back(gpt2: Path, tmp_path: Path, capsys) -> None:
    assert run(gpt2, tmp_path / "ours") == 0
    assert "AutoModelForCausalLM" in capsys.readouterr().out
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    ids = words("the cat sat", return_tensors="pt")["input_ids"]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(gpt2).eval()
    ours = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert type(ours).__name__ == "MagnetoForCausalLM"
    assert (ours(ids).logits - theirs(ids).logits).abs().max() <= 1e-5
    settings = {"max_new_tokens": 6, "do_sample": False}
    assert torch.equal(ours.generate(ids, **settings), theirs.generate(ids, **settings))
    assert ours.config.eos_token_id == theirs.config.eos_token_id

    assert run(tmp_path / "ours", tmp_path / "back", "--to", "gpt2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["model"] == "GPT2LMHeadModel.from_pretrained"
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    expected = theirs.state_dict()
    assert all(torch.equal(expected[name], t) for name, t in back.state_dict().items())
    assert back.config.eos_token_id == theirs.config.eos_token_id


def model(**changes) -> LanguageModel:
    torch.manual_seed(0)
    values = {**SIZES, "vocab_size": 97, "positions": "learned", "max_length": 20, **changes}
    return LanguageModel(LanguageModelConfig(**values)).eval()


def test_a_fairseq_checkpoint_brings_its_arguments(tmp_path: Path) -> None:
    """The arguments may also be given by --config. A pickle is not executed."""
    ours = model()
    state, args = write_weights(ours, "torchscale")
    held = {"model": {f"decoder.{n}": t for n, t in state.items()}, "args": Namespace(**args)}
    torch.save(held, tmp_path / "checkpoint.pt")
    torch.save(state, tmp_path / "bare.pt")
    (tmp_path / "args.json").write_text('{"decoder_attention_heads": 4, "no_scale_embedding": 0}')
    assert run(tmp_path / "checkpoint.pt", tmp_path / "ours") == 0
    config = ("--config", tmp_path / "args.json")
    assert run(tmp_path / "bare.pt", tmp_path / "bare", *config) == 0
    ids = torch.arange(6)[None]
    for name in ("ours", "bare"):
        loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name).eval()
        assert torch.equal(loaded(ids).logits, ours(ids))


def test_a_name_of_timms_on_the_hub_brings_its_weights(tmp_path: Path, monkeypatch) -> None:
    import huggingface_hub

    hub, here = tmp_path / "hub", tmp_path / "cache"
    hub.mkdir()
    values = {"placement": "pre", "norm_eps": 1e-6, "image_size": 8, "patch_size": 4, "classes": 3}
    ours = ImageClassifier(ImageClassifierConfig(**SIZES, **values))
    save_weight_file(ours, "timm_vit", hub)

    def download(name: str, allow_patterns: list[str]) -> str:
        here.mkdir(exist_ok=True)
        for path in hub.iterdir():
            if path.name in allow_patterns:
                shutil.copyfile(path, here / path.name)
        return str(here)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert run("timm/small", tmp_path / "ours") == 0
    load = transformers.AutoModelForImageClassification.from_pretrained
    found = load(tmp_path / "ours").core.state_dict()
    assert all(torch.equal(found[name], t) for name, t in ours.state_dict().items())


def test_mistakes_are_one_line_each(tmp_path: Path, gpt2: Path, capsys, monkeypatch) -> None:
    def offline(*_: object, **__: object) -> str:
        raise ConnectionError("no network in tests")

    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    wrap(model()).save_pretrained(tmp_path / "sub")
    for name, content in (("old", '{"model_type": "gpt-2"}'), ("none", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(content)
    for name in ("broken.pt", "broken.safetensors"):
        (tmp_path / name).write_bytes(b"no weights")
    torch.save({"weight": torch.ones(2)}, tmp_path / "other.pt")
    shutil.copytree(gpt2, tmp_path / "words")
    (tmp_path / "words" / "tokenizer.json").write_text("{}")
    (tmp_path / "list.json").write_text("[1]")
    for words, source, *options in (
        ("no file or directory weights.pt", "weights.pt"),
        ("no directory some/model, and no such model on the hub", "some/model"),
        ("a LanguageModel to 'bert'. Supported targets: gpt2", gpt2, "--to", "bert"),
        ("gpt2 cannot represent this model: placement is 'sub'", tmp_path / "sub", "--to", "gpt2"),
        ("convert model_type 'gpt-2', only gpt2, bert, bart, marian", tmp_path / "old"),
        ("config.json has no model_type", tmp_path / "none"),
        ("broken.pt is damaged, or contains more than weights", tmp_path / "broken.pt"),
        ("broken.safetensors is damaged, or", tmp_path / "broken.safetensors"),
        ("unknown weights. Give weights of timm", tmp_path / "other.pt"),
        ("must be a JSON object", gpt2, "--config", tmp_path / "list.json"),
        ("--config has no effect with", gpt2, "--config", gpt2 / "config.json"),
        ("invalid choice: 'gpt'", "some/model", "--to", "gpt"),
        ("words is damaged: KeyError", tmp_path / "words"),
    ):
        assert words in refused(capsys, "convert", source, tmp_path / "out", *options)
        assert not (tmp_path / "out").exists()
    assert sorted(FORMATS) == sorted({*NAMES, *WRITTEN})
    assert "exists and is not empty" in refused(capsys, "convert", gpt2, gpt2)
    # Before the run is loaded.
    assert "exists and is not empty" in refused(capsys, "export", tmp_path / "no-run", gpt2)


def test_damaged_exports_are_refused(tmp_path: Path, capsys) -> None:
    changes: dict[str, Any] = {
        "more": lambda state: state.update(extra=torch.ones(1)),
        "headless": lambda state: state.pop("core.head.bias"),
        "other": lambda state: state.update({"core.head.bias": torch.ones(9)}),
    }
    values = {"image_size": 8, "patch_size": 4, "classes": 3}
    classifier = wrap(ImageClassifier(ImageClassifierConfig(**SIZES, **values)))
    for name, change in changes.items():
        classifier.save_pretrained(tmp_path / name)
        state = load_file(tmp_path / name / "model.safetensors")
        change(state)
        save_file(state, tmp_path / name / "model.safetensors", {"format": "pt"})
    classifier.config.architectures = ["MagnetoForImages"]
    classifier.config.save_pretrained(tmp_path / "unknown")
    for words, source in (
        ("more has an unknown tensor extra", tmp_path / "more"),
        ("headless has no core.head.bias", tmp_path / "headless"),
        ("other: the shape of core.head.bias is (9,), but must be (3,)", tmp_path / "other"),
        ("'MagnetoForImages', not a model of Magneto; did", tmp_path / "unknown"),
    ):
        assert words in refused(capsys, "convert", source, tmp_path / "out")


def test_a_pickle_is_not_executed(tmp_path: Path, capsys) -> None:
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "exploded",))

    torch.save({"model": Bomb()}, tmp_path / "bomb.pt")
    line = refused(capsys, "convert", tmp_path / "bomb.pt", tmp_path / "out")
    assert "contains more than weights" in line
    assert not (tmp_path / "exploded").exists()


def test_no_code_of_a_folder_is_run(tmp_path: Path, capsys, monkeypatch) -> None:
    """No answer on standard input, where transformers would ask, changes that."""
    folder, ran = tmp_path / "theirs", tmp_path / "ran"
    folder.mkdir()
    code = f"open({str(ran)!r}, 'w').close()\nclass Code: pass\n"
    (folder / "code.py").write_text(code)
    config = {"model_type": "own", "auto_map": {"AutoConfig": "code.Code"}}
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 4))
    assert "cannot convert model_type 'own'" in refused(capsys, "convert", folder, tmp_path / "o")
    assert not ran.exists()


def test_beit3_of_questions_with_its_tokenizer_and_answers(tmp_path: Path, capsys) -> None:
    """Convert from the original names, load with a processor, and convert back."""
    pytest.importorskip("sentencepiece")
    torch.manual_seed(0)
    values = {
        **SIZES, "placement": "sub", "image_size": 8, "patch_size": 4, "vocab_size": 60,
        "max_length": 20, "embedding_scale": "none",
    }  # fmt: skip
    config = QuestionAnsweringConfig(**values, answers=2)
    state, args = write_weights(QuestionAnswerer(config).eval(), "beit3")
    source, ours = tmp_path / "beit3_base_patch16_480_vqa.pth", tmp_path / "ours"
    torch.save({"model": state, "args": Namespace(**args)}, source)
    spm = train_spm(tmp_path)
    labels = tmp_path / "answer2label.txt"
    labels.write_text('{"answer": "no", "label": 0}\n{"answer": "yes", "label": 1}\n')
    assert run(source, ours, "--tokenizer", spm, "--labels", labels) == 0
    assert "AutoModelForVisualQuestionAnswering" in capsys.readouterr().out
    model = transformers.AutoModelForVisualQuestionAnswering.from_pretrained(ours).eval()
    processor = transformers.AutoProcessor.from_pretrained(ours)
    picture = torch.randint(0, 256, (11, 7, 3), dtype=torch.uint8).numpy()
    read = processor(images=[picture] * 2, text=["a red circle", "a"])
    assert read["input_ids"][0, 0] == 0 and read["input_ids"][1, -2:].tolist() == [1, 1]
    assert read["pixel_values"].shape == (2, 3, 8, 8)
    assert model(**read).logits.shape == (2, 2) and model.config.id2label == {0: "no", 1: "yes"}
    assert run(ours, tmp_path / "back", "--to", "beit3") == 0
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())
    assert run(tmp_path / "back", tmp_path / "again") == 0
    given = (ours, tmp_path / "theirs", "--to", "beit3", "--labels", labels)
    assert "are for BEiT-3 weights" in refused(capsys, "convert", *given)
    labels.write_text('{"answer": "no", "label": 0}\n')
    given = (source, tmp_path / "fewer", "--labels", labels)
    assert "1 class names for 2 classes" in refused(capsys, "convert", *given)
    state, args = write_weights(VisualReasoner(VisualReasonerConfig(**values)), "beit3")
    torch.save({"model": state, "args": Namespace(**args)}, source)
    assert "fine-tuned on VQA, not for a VisualReasoner" in refused(capsys, "convert", *given)
