"""Tests of every kind of model in transformers: directories, options and refusals."""

import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

transformers = pytest.importorskip("transformers")

from magneto import hf  # noqa: E402
from magneto.hf.export import auto_class, check_tasks, export_model, harness_scores  # noqa: E402
from magneto.hf.wrapper import CONFIGURATIONS  # noqa: E402
from tests.unit.hf.kinds import IDS, KINDS, MASK, PIXELS, SEEN, inputs, says, wrapped  # noqa: E402


@torch.no_grad()
@pytest.mark.parametrize("name", KINDS)
def test_a_directory_loads_the_saved_model(name: str, tmp_path: Path) -> None:
    """An Auto class loads it in fp32, in bfloat16, and with weights offloaded to disk."""
    pytest.importorskip("accelerate")
    hf.register()
    model = wrapped(name)
    model.save_pretrained(tmp_path)
    load = getattr(transformers, auto_class(name)).from_pretrained
    again = load(tmp_path).eval()
    assert type(again) is type(model)
    state = model.state_dict()
    assert again.state_dict().keys() == state.keys()
    assert all(torch.equal(again.state_dict()[key], tensor) for key, tensor in state.items())
    expected = says(model, name)
    assert torch.equal(says(again, name), expected) and expected.std() > 1e-3
    disk = load(tmp_path, device_map={"": "disk"}, offload_folder=tmp_path / "offload")
    assert torch.equal(says(disk, name), expected)
    half = says(load(tmp_path, dtype=torch.bfloat16), name)
    assert half.dtype == torch.bfloat16 or "Retrieval" in name  # its scale is in fp32
    assert (half.float() - expected).abs().max() <= 0.1 * expected.abs().max()


@pytest.mark.parametrize(
    ("name", "changes", "share"),
    [
        ("MagnetoForCausalLM", {"layers": 3, "tie_embeddings": False}, 0.75),
        ("MagnetoForSeq2SeqLM", {}, 0.5),
    ],
)
def test_layers_offloaded_to_disk(
    name: str, changes: dict[str, Any], share: float, tmp_path: Path
) -> None:
    """An automatic device map offloads whole layers, and changes no number."""
    pytest.importorskip("accelerate")
    model = wrapped(name, **changes)
    if "Seq2Seq" in name:
        model.core.logits_bias.normal_()
    model.save_pretrained(tmp_path)
    held = round(share * sum(parameter.numel() * 4 for parameter in model.parameters()))
    loaded = type(model).from_pretrained(
        tmp_path, device_map="auto", max_memory={"cpu": held}, offload_folder=tmp_path / "offload"
    )
    places = loaded.hf_device_map
    assert set(places.values()) == {"cpu", "disk"}
    assert not any("." in place.partition(".layers.")[2] for place in places)
    assert torch.equal(says(loaded, name), says(model, name))
    how: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False}
    assert torch.equal(loaded.generate(IDS, **how), model.generate(IDS, **how))


@pytest.mark.parametrize("name", KINDS)
def test_a_directory_that_lacks_weights_of_a_layer_is_refused(name: str, tmp_path: Path) -> None:
    model = wrapped(name)
    state = model.state_dict()
    del state[next(key for key in state if key.endswith("fc1.weight"))]
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(ValueError, match="missing weights: weight of a Projection"):
        type(model).from_pretrained(tmp_path)


def test_generated_configuration_classes_are_found_by_name() -> None:
    """Pickling configurations and models needs this."""
    for config in CONFIGURATIONS:
        assert pickle.loads(pickle.dumps(config)) is getattr(hf, config.__name__)


def test_initialisation_of_magneto_is_kept() -> None:
    """By default, `post_init` of transformers would initialise the weights again."""
    for name in ("MagnetoForCausalLM", "MagnetoForSequenceClassification"):
        wrapper = getattr(hf, name)
        config = wrapper.config_class(**KINDS[name][1], placement="deepnorm")
        own = wrapper(config).own_config()
        torch.manual_seed(0)
        expected = wrapper.core_class(own).state_dict()
        torch.manual_seed(0)
        found = wrapper(config).unwrap().state_dict()
        assert all(torch.equal(found[key], tensor) for key, tensor in expected.items())


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", KINDS)
def test_gradient_checkpointing_changes_no_gradient(name: str) -> None:
    model = wrapped(name, **({"classifier_dropout": 0.0} if "Sequence" in name else {})).train()
    runs, gradients = [], []
    stack = list(model._stacks())[-1]
    stack.layers[0].register_forward_pre_hook(lambda *_: runs.append(1))
    for enable in (False, True, False):
        getattr(model, f"gradient_checkpointing_{'enable' if enable else 'disable'}")()
        assert model.is_gradient_checkpointing == model.is_activation_checkpointing == enable
        model.zero_grad()
        runs.clear()
        says(model, name).square().sum().backward()
        assert len(runs) == 1 + enable
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(gradients[0], gradients[1], strict=True))
    with pytest.raises(ValueError, match="every_n_layers=2"):
        model.activation_checkpointing_enable(every_n_layers=2)


def test_unsupported_arguments_and_masks_of_another_shape_are_refused_by_name() -> None:
    """Also what collators say of packed texts."""
    words = {
        "inputs_embeds": "input_ids",
        "position_ids": "attention_mask",
        **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx"), "attention_mask"),
        **dict.fromkeys(("head_mask", "output_attentions", "past_key_values"), "no such argument"),
    }
    known = {
        "MagnetoForCausalLM": ("inputs_embeds", "position_ids", "past_key_values"),
        "MagnetoForSeq2SeqLM": ("past_key_values",),
    }
    for name in KINDS:
        model, given = wrapped(name), inputs(name)
        for argument, why in words.items():
            if argument in known.get(name, ()):
                continue
            with pytest.raises(ValueError, match=f"{argument} is not supported: .*{why}"):
                model(**given, **{argument: torch.zeros(2, 7)})
        given.pop("attention_mask", None)
        length = 40 if "Transducer" in name else IDS.shape[1]
        masks = ["attention_mask"] * ("ImageClassification" not in name)
        for argument in masks + ["decoder_attention_mask"] * ("Seq2Seq" in name):
            for shape in ((1, length), (2, length - 1), (2, 1, length, length)):
                with pytest.raises(ValueError, match=r"mask is \(.*\), but must be \(2, \d+"):
                    model(**given, **{argument: torch.ones(shape, dtype=torch.long)})


def test_token_types_of_a_single_text_are_accepted() -> None:
    """A tokenizer of transformers returns them by default, as 0; other types are refused."""
    for name in ("MagnetoForCausalLM", "MagnetoForSeq2SeqLM", "MagnetoVisionLanguageModel"):
        model, given = wrapped(name), inputs(name)
        types = torch.zeros_like(IDS)
        assert torch.equal(model(**given, token_type_ids=types)[0], model(**given)[0])
        with pytest.raises(ValueError, match="has no token types"):
            model(**given, token_type_ids=types + 1)


def test_what_the_harness_cannot_run_is_told_by_its_first_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for error, message in ((OSError("no data\nin a"), "no data"), (RuntimeError(), "RuntimeError")):
        harness = SimpleNamespace(simple_evaluate=Mock(side_effect=error))
        monkeypatch.setitem(sys.modules, "lm_eval", harness)
        with pytest.raises(ValueError, match=f"cannot run boolq: {message}. Without internet"):
            harness_scores(None, ["boolq"], 0, 1, None)
    harness = SimpleNamespace(simple_evaluate=Mock(return_value={}))
    monkeypatch.setitem(sys.modules, "lm_eval", harness)
    harness_scores("model", ["boolq"], 2, 7, "manager", limit=3)
    given = harness.simple_evaluate.call_args.kwargs
    expected = {"fewshot_random_seed": 7, "limit": 3, "num_fewshot": 2, "log_samples": False}
    assert {name: given[name] for name in expected} == expected
    known = SimpleNamespace(all_tasks=["boolq"], match_tasks=lambda names: names == ["mmlu_*"])
    check_tasks(["boolq", "mmlu_*", "hellaswag"], known, ["hellaswag"])
    with pytest.raises(ValueError, match=r"no task 'bolq' in .*; did you mean boolq"):
        check_tasks(["boolq", "bolq"], known)


@pytest.mark.parametrize("name", KINDS)
def test_hidden_states(name: str) -> None:
    """They are each layer's input and the normed output, or the request is refused."""
    model = wrapped(name)
    if name in SEEN:
        with pytest.raises(ValueError, match="output_hidden_states is not supported"):
            model(**inputs(name), output_hidden_states=True)
        return
    found = model(**inputs(name), output_hidden_states=True)
    states = found.get("hidden_states") or found.decoder_hidden_states
    assert len(states) == 3
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.core.modules())
    none = model(**inputs(name))
    assert none.get("hidden_states") is None and none.get("decoder_hidden_states") is None
    if name == "MagnetoForCausalLM":
        assert torch.equal(states[0], model.core.embedding(IDS))
        assert torch.equal(model.core.head(states[-1]), found.logits)
        model.config.output_hidden_states = True
        assert len(model(IDS).hidden_states) == 3
        assert model(IDS, output_hidden_states=False).hidden_states is None
    assert isinstance(model(**inputs(name), return_dict=False), tuple)


def test_other_attention_and_a_size_outside_the_core_are_refused(tmp_path: Path) -> None:
    model = wrapped("MagnetoForCausalLM")
    model.save_pretrained(tmp_path)
    load = type(model).from_pretrained
    with pytest.raises(ValueError, match="attn_implementation must be 'sdpa', not 'eager'"):
        load(tmp_path, attn_implementation="eager")
    with pytest.raises(ValueError, match="attn_implementation must be 'sdpa', not 'eager'"):
        model.set_attn_implementation("eager")
    with pytest.raises(ValueError, match=r"is 32, but config\.core gives 16"):
        load(tmp_path, hidden_size=32)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "name", ["MagnetoForCausalLM", "MagnetoForMaskedLM", "MagnetoForSeq2SeqLM"]
)
def test_a_resized_vocabulary_is_saved_and_loaded(name: str, tied: bool, tmp_path: Path) -> None:
    """New rows have the initialisation of the other rows and a bias of zero."""
    tied = tied or "Seq2Seq" in name
    changes = {} if "Seq2Seq" in name else {"tie_embeddings": tied}
    model = wrapped(name, **changes)
    before = model(**inputs(name)).logits
    model.resize_token_embeddings(2000, mean_resizing=False)
    assert (model(**inputs(name)).logits[..., :40] - before).abs().max() <= 1e-4
    grown = model.get_input_embeddings().weight[40:]
    assert grown.std().item() == pytest.approx(16**-0.5, rel=0.05)
    head = model.get_output_embeddings()
    assert (head.weight is model.get_input_embeddings().weight) == tied
    assert getattr(head, "bias", None) is None or not head.bias[40:].any()
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    assert loaded.core.config.vocab_size == 2000
    assert torch.equal(loaded(**inputs(name)).logits, model(**inputs(name)).logits)


def test_a_smaller_vocabulary_has_a_shorter_bias() -> None:
    model = wrapped("MagnetoForSeq2SeqLM")
    bias = model.core.logits_bias.normal_().clone()
    model.resize_token_embeddings(30)
    assert torch.equal(model.core.logits_bias, bias[:30])


def test_the_labels_decide_the_problem() -> None:
    """Unless the configuration names it: one number, several classes at once, or one class."""
    classes, several = torch.tensor([0, 2]), torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    for count, labels, loss in (
        (1, torch.tensor([0.5, 2.0]), lambda logits, labels: F.mse_loss(logits[:, 0], labels)),
        (3, classes, F.cross_entropy), (3, several, F.binary_cross_entropy_with_logits),
    ):  # fmt: skip
        found = wrapped("MagnetoForSequenceClassification", num_labels=count)(IDS, labels=labels)
        assert found.loss.item() == pytest.approx(loss(found.logits, labels).item(), rel=1e-5)


def test_a_directory_without_a_head_gets_a_new_one(tmp_path: Path) -> None:
    """Transformers leaves missing weights uninitialised; `_init_weights` must initialise them."""
    hf.register()
    model = wrapped("MagnetoForMaskedLM", width=128, ffn_width=16)
    model.save_pretrained(tmp_path)
    load = transformers.AutoModelForSequenceClassification.from_pretrained
    loaded = load(tmp_path, num_labels=4)
    held = model.core.state_dict()
    assert all(torch.equal(loaded.core.state_dict()[name], t) for name, t in held.items())
    head = loaded.classifier
    assert head.answer.weight.shape == (4, 128)
    assert 0.015 < head.answer.weight.std() < 0.025 and not head.answer.bias.any()
    assert 0.07 < head.dense.weight.std() < 0.11 and not head.dense.bias.any()
    assert not torch.equal(load(tmp_path, num_labels=4).classifier.dense.weight, head.dense.weight)
    wrapped("MagnetoEncoderModel").save_pretrained(tmp_path / "bare")
    masked: Any = hf.MagnetoForMaskedLM.from_pretrained(tmp_path / "bare")
    assert masked.head.vocabulary.weight is masked.core.embedding.table.weight
    assert not masked.head.vocabulary.bias.any() and (masked.head.norm.weight == 1).all()
    state = load_file(tmp_path / "model.safetensors")
    del state["head.dense.bias"]
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    partial: Any = hf.MagnetoForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(partial.head.dense.weight, model.head.dense.weight)
    assert not partial.head.dense.bias.any()


@torch.no_grad()
def test_images_texts_and_pairs() -> None:
    """Images or texts may be missing; left and right padding give equal results."""
    model, pixels = wrapped("MagnetoVisionLanguageModel").double(), PIXELS.double()
    text = {"input_ids": IDS, "attention_mask": MASK}
    both, images, texts = model(pixels, **text), model(pixels), model(**text)
    assert images.text_features is None and texts.image_features is None
    assert both.image_features.shape == images.image_features.shape == (2, 5, 16)
    assert not both.text_features[~MASK.bool()].any()
    alone = model(pixels[1:], IDS[1:, :4])
    assert torch.allclose(alone.text_features, both.text_features[1:, :4], rtol=0, atol=1e-12)
    left = model(pixels[1:], IDS[1:].roll(3, 1), MASK[1:].flip(1))
    assert torch.allclose(left.text_features[:, 3:], alone.text_features, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="give pixel_values, input_ids, or both"):
        model()
    for name in set(SEEN) - {"MagnetoForImageTextRetrieval"}:
        given = inputs(name)
        with pytest.raises(ValueError, match="batch size 1, but input_ids has batch size 2"):
            wrapped(name)(**{**given, "pixel_values": given["pixel_values"][:1]})


@torch.no_grad()
def test_masked_patches_do_not_affect_the_logits() -> None:
    model = wrapped("MagnetoForMaskedDataModelling")
    hidden, other = torch.zeros(2, 4), PIXELS.clone()
    hidden[:, 0] = 1
    other[:, :, :4, :4] += 1
    text = {"input_ids": IDS, "attention_mask": MASK}
    found, again = (model(x, **text, bool_masked_pos=hidden) for x in (PIXELS, other))
    assert torch.equal(found.image_logits, again.image_logits)
    assert (found.image_logits.shape, found.logits.shape) == ((2, 4, 6), (2, 7, 40))
    assert not torch.allclose(model(other, **text).logits, found.logits, atol=1e-4)


@torch.no_grad()
def test_retrieval() -> None:
    model, given = wrapped("MagnetoForImageTextRetrieval"), inputs("MagnetoForImageTextRetrieval")
    found = model(**given, return_loss=True)
    own = torch.arange(2)
    losses = [F.cross_entropy(x, own) for x in (found.logits_per_image, found.logits_per_text)]
    assert found.loss.item() == pytest.approx(torch.stack(losses).mean().item(), rel=1e-5)
    image, text = given.pop("pixel_values"), given
    assert torch.allclose(model(image[:1]).image_embeds, found.image_embeds[:1], atol=1e-6)
    assert torch.allclose(model(**text).text_embeds, found.text_embeds, atol=1e-6)
    assert model(image[:1], **text).logits_per_image.shape == (1, 2)


def test_captions_are_causal_and_need_their_special_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    model, changed = wrapped("MagnetoForImageCaptioning"), IDS.clone()
    changed[:, -1] = 3
    found, other = (model(PIXELS, ids).logits for ids in (IDS, changed))
    assert torch.allclose(found[:, :-1], other[:, :-1], atol=1e-6)
    assert not torch.allclose(found[:, -1], other[:, -1], atol=1e-3)
    with pytest.raises(ValueError, match="configuration needs bos_token_id"):
        model.generate(PIXELS)
    for name, number in {"bos": 1, "eos": 2, "pad": 0, "mask": 3}.items():
        setattr(model.config, f"{name}_token_id", number)
    written = model.generate(PIXELS, num_beams=1)
    assert len(written) == 2 and not {1, 3} & set(written.flatten().tolist())
    model.config.pad_token_id, asked = 9, []
    search = "magneto.vision_language.caption_decoding.CaptionWriter.search"
    monkeypatch.setattr(search, lambda _, images, how: asked.append(how) or [[5], [6, 7]])
    assert model.generate(PIXELS, 2, 1.5).tolist() == [[5, 9], [6, 7]]
    assert (asked[0].beams, asked[0].length_penalty) == (2, 1.5)


def test_a_text_without_the_mask_token_is_refused() -> None:
    masked = IDS.clone()
    masked[0, -2] = masked[1, 2] = 3
    elsewhere = IDS.clone()
    elsewhere[:, 1] = 3
    for name in ("MagnetoForVisualQuestionAnswering", "MagnetoForVisualReasoning"):
        model, given = wrapped(name, pooling="mask_token"), inputs(name)
        model(**given)  # the configuration has no mask token
        model.config.mask_token_id = 3
        for wrong in (IDS, elsewhere):
            with pytest.raises(ValueError, match="must have the mask token, 3, before its end"):
                model(**{**given, "input_ids": wrong})
        assert model(**{**given, "input_ids": masked}).logits.shape[0] == 2
    statements = inputs("MagnetoForVisualReasoning") | {"pixel_values": PIXELS}
    with pytest.raises(ValueError, match=r"\(statements, 2, channels, height, width\), not"):
        wrapped("MagnetoForVisualReasoning")(**statements)


def test_padding_of_a_recording_is_not_transcribed() -> None:
    model = wrapped("MagnetoForTransducer")
    features, mask = inputs("MagnetoForTransducer")["input_features"], torch.ones(2, 40)
    mask[1, 16:] = 0
    found = model.transcribe(features, mask)
    assert found[1] == model.transcribe(features[1:, :16])[0] != model.transcribe(features)[1]


def test_a_custom_tasks_module_may_export_itself(tmp_path: Path, monkeypatch) -> None:
    code = 'def export(*given):\n    return "{} {} {}".format(*given)\n'
    (tmp_path / "task_with_an_export.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    given: Any = ("model", "data", "directory")
    assert export_model("task_with_an_export:Own", *given) == "model data directory"
