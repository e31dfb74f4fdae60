"""BEiT-3 by its authors' names: torchscale's forward, the authors' heads and timm's reading."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.hf.conversion import FILE_FORMATS, load_weights, write_weights
from magneto.vision_language.caption_decoding import left_to_right
from magneto.vision_language.config import (
    ImageCaptionerConfig,
    ImageTextRetrieverConfig,
    MaskedDataModelConfig,
    QuestionAnsweringConfig,
    VisionLanguageConfig,
    VisualReasonerConfig,
)
from magneto.vision_language.model import (
    ImageCaptioner,
    ImageTextRetriever,
    MaskedDataModel,
    MaskedSamples,
    QuestionAnswerer,
    VisionLanguageEncoder,
    VisualReasoner,
    interpolate_positions,
)
from magneto.vision_language.samples import Samples, join_samples
from tests.oracles import beit3_models as authors
from tests.oracles.beit3_models import (
    ARGS,
    IMAGE,
    INNER,
    SIDE,
    TEXT,
    WIDTH,
    WORDS,
    beit3,
    shaken,
)
from tests.oracles.hf_models import same_gradients

LENGTHS = (7, 4)
GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.randn(2, 3, SIDE, SIDE, generator=GENERATOR)
OTHERS = torch.randn(2, 3, SIDE, SIDE, generator=GENERATOR)
TOKENS = torch.randint(2, WORDS, (2, 7), generator=GENERATOR)
PADDING = torch.arange(7) >= torch.tensor(LENGTHS)[:, None]
TEXTS = [row[:length].numpy() for row, length in zip(TOKENS, LENGTHS, strict=True)]


def check(found: Tensor, expected: Tensor, name: str) -> None:
    difference = (found - expected).abs().max().item()
    print(f"BEiT-3, {name}: largest difference {difference:.2e}")
    assert found.shape == expected.shape
    assert difference <= 1e-5 and expected.abs().max() > 0.1


def converted(theirs: nn.Module, kind: type) -> Any:
    """Ours of theirs; and ours written back is theirs, bit for bit."""
    state = theirs.state_dict()
    ours = load_weights(state, ARGS)
    assert type(ours) is kind
    back, args = write_weights(ours, "beit3")
    assert back.keys() == state.keys()
    for name, tensor in state.items():
        # Where no patch is ever hidden, the token is not kept.
        if kind is MaskedDataModel or not name.endswith("mask_token"):
            assert torch.equal(back[name], tensor), name
    assert load_weights(back, args).config == ours.config
    theirs.load_state_dict(back)
    return ours


def test_questions() -> None:
    """Fine-tuned without a norm on top; with gradients of the images."""
    theirs = shaken(authors.Answering(beit3(normalize_output=False)))
    ours = converted(theirs, QuestionAnswerer)
    assert (ours.config.answers, ours.config.final_norm) == (7, "none")
    assert (ours.config.image_size, ours.config.max_length) == (SIDE, TEXT)
    images = IMAGES.clone().requires_grad_()
    found = ours(images, join_samples(IMAGE, paired=TEXTS))
    expected = theirs(images, TOKENS, PADDING)
    check(found, expected, "questions")
    same_gradients((expected, found), (images, images), 1e-3)


@torch.no_grad()
def test_statements() -> None:
    theirs = shaken(authors.Reasoning(beit3()))
    ours = converted(theirs, VisualReasoner)
    images = torch.stack((IMAGES, OTHERS), 1).flatten(0, 1)
    samples = join_samples(IMAGE, paired=[text for text in TEXTS for _ in range(2)])
    check(ours(images, samples), theirs(IMAGES, OTHERS, TOKENS, PADDING), "statements")


@torch.no_grad()
def test_retrieval() -> None:
    theirs = shaken(authors.Retrieving(beit3()))
    ours = converted(theirs, ImageTextRetriever)
    found = ours(IMAGES, join_samples(IMAGE, images=2, alone=TEXTS))
    for name, a, b in zip(("images", "texts", "scale"), found, theirs(IMAGES, TOKENS, PADDING),
                          strict=True):  # fmt: skip
        check(a, b, f"retrieval, {name}")


@torch.no_grad()
def test_captions() -> None:
    theirs = shaken(authors.Captioning(beit3()))
    ours = converted(theirs, ImageCaptioner)
    asked = torch.zeros(2, 7, dtype=torch.bool)
    asked[0, [2, 6]] = asked[1, [1, 3]] = True
    samples = join_samples(IMAGE, paired=TEXTS)
    packed = Samples(**{**vars(samples), "packing": left_to_right(samples.packing, IMAGE)})
    found = ours(IMAGES, packed, torch.tensor([2, 6, 8, 10]))
    check(found, theirs(IMAGES, TOKENS, PADDING, asked), "captions")


@torch.no_grad()
def test_pretraining() -> None:
    theirs = shaken(authors.Pretraining(beit3()))
    ours = converted(theirs, MaskedDataModel)
    assert ours.config.codes == 6
    hidden = torch.zeros(2, 9, dtype=torch.bool)
    hidden[0, [0, 5]] = hidden[1, [3, 8]] = True
    patches, words = torch.tensor([0, 5, 12, 17]), torch.arange(sum(LENGTHS))
    masked = MaskedSamples(join_samples(IMAGE, paired=TEXTS), hidden, patches, words, 0, 11)
    found = ours(IMAGES, masked)
    expected = theirs(IMAGES, TOKENS, PADDING, hidden)
    check(found[0], expected[0], "masked patches")
    check(found[1], expected[1][~PADDING], "words")


@torch.no_grad()
def test_torchscale_by_itself() -> None:
    """Its own class without a head; and it is built again from the arguments that are written."""
    theirs = shaken(beit3())
    ours = load_weights(theirs.state_dict(), ARGS)
    assert type(ours) is VisionLanguageEncoder
    samples = join_samples(IMAGE, paired=TEXTS)
    vision, language = ours(IMAGES, samples)
    state, args = write_weights(ours, "beit3")
    from torchscale.architecture.config import EncoderConfig
    from torchscale.model.BEiT3 import BEiT3

    again = authors.Authors(BEiT3(EncoderConfig(**args)))
    again.load_state_dict(state)
    for model in (authors.Authors(theirs), again.eval()):
        expected = model.encode(TOKENS, IMAGES, PADDING)
        check(vision.unflatten(0, (2, IMAGE)), expected[:, :IMAGE], "vision")
        check(language, expected[:, IMAGE:][~PADDING], "language")


@torch.no_grad()
def test_scaled_embeddings_are_written_without_their_scale() -> None:
    sizes: dict[str, Any] = {"width": 16, "layers": 1, "heads": 2, "ffn_width": 24}
    config = VisionLanguageConfig(**sizes, image_size=8, patch_size=4, vocab_size=20, max_length=8,
                                  embedding_scale="sqrt_width")  # fmt: skip
    model = VisionLanguageEncoder(config)
    again: Any = load_weights(*write_weights(model, "beit3"))
    assert again.config.embedding_scale == "none"
    found = again.text_embedding.words(torch.arange(20))
    assert torch.allclose(found, model.text_embedding.words(torch.arange(20)))


def test_positions_of_another_image_size() -> None:
    """As the authors load weights for larger images: bicubic, the class token's row kept."""
    theirs = shaken(authors.Answering(beit3(normalize_output=False)))
    ours = converted(theirs, QuestionAnswerer)
    config = QuestionAnsweringConfig(**{**vars(ours.config), "image_size": 20})
    larger = QuestionAnswerer(config).eval()
    larger.load_state_dict(interpolate_positions(ours.state_dict(), ours.config, config))
    table = theirs.state_dict()["beit3.encoder.embed_positions.A.weight"]
    grid = table[3:].reshape(1, 3, 3, WIDTH).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=(5, 5), mode="bicubic", align_corners=False)
    state = theirs.state_dict()
    state["beit3.encoder.embed_positions.A.weight"] = torch.cat(
        (table[:3], grid.permute(0, 2, 3, 1).flatten(0, 2))
    )
    large = authors.Answering(beit3(normalize_output=False, img_size=20)).eval()
    large.load_state_dict(state)
    images = torch.randn(2, 3, 20, 20)
    found = larger(images, join_samples(26, paired=TEXTS))
    check(found, large(images, TOKENS, PADDING), "questions about larger images")


def small(**changes) -> VisionLanguageEncoder:
    values = {"width": 32, "heads": 4, "layers": 1, "ffn_width": 48, "placement": "sub",
              "image_size": 12, "patch_size": 4, "vocab_size": 40, "max_length": 8}  # fmt: skip
    return VisionLanguageEncoder(VisionLanguageConfig(**{**values, **changes})).eval()


def test_half_precision_dropout_and_epsilon() -> None:
    state, args = write_weights(small(dropout=0.1, norm_eps=1e-6, activation="relu"), "beit3")
    half = {name.removeprefix("beit3."): tensor.half() for name, tensor in state.items()}
    config: Any = load_weights(half, args).config
    assert (config.dropout, config.norm_eps, config.activation) == (0.1, 1e-6, "relu")


def test_weights_that_do_not_fit_are_named() -> None:
    state, args = write_weights(small(), "beit3")
    classifier, table = authors_state(), "beit3.encoder.embed_positions.A.weight"
    headless = {name: t for name, t in classifier.items() if not name.startswith("head.")}
    lacking = {name: t for name, t in state.items() if name != "beit3.text_embed.weight"}
    for given, values, words in (
        (headless, ARGS, r"have no head\.weight, which ImageClassifier needs"),
        (classifier | {"extra": torch.ones(1)}, ARGS, "no counterpart of the tensor 'extra'"),
        (lacking, args, r"no beit3\.text_embed\.weight"),
        (state | {table: torch.ones(11, 32)}, args, "8 patches are not a square image"),
        (state, {}, "heads does not follow from width 32"),
    ):
        with pytest.raises(ValueError, match=words):
            load_weights(given, values)


# Of each: the image size, millions of parameters that unilm's README gives of base and of large,
# the model and its configuration.
KINDS: dict[str, tuple[int, dict[str, int], Any, Any, dict[str, Any]]] = {
    "pretraining": (224, {"base": 276, "large": 746}, MaskedDataModel, MaskedDataModelConfig,
                    {"codes": 8192}),
    "questions": (480, {"base": 228, "large": 683}, QuestionAnswerer, QuestionAnsweringConfig,
                  {"answers": 3129}),
    "statements": (224, {"base": 226, "large": 681}, VisualReasoner, VisualReasonerConfig, {}),
    "retrieval": (384, {"base": 222, "large": 675}, ImageTextRetriever, ImageTextRetrieverConfig,
                  {}),
    "captions": (480, {"base": 271, "large": 739}, ImageCaptioner, ImageCaptionerConfig, {}),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", ["base", pytest.param("large", marks=pytest.mark.slow)])
def test_the_released_sizes(kind: str, size: str) -> None:
    """As many parameters as their authors count."""
    side, millions, model, config, values = KINDS[kind]
    width, layers = {"base": (768, 12), "large": (1024, 24)}[size]
    with torch.device("meta"):
        made = model(config(
            width=width, layers=layers, heads=width // 64, ffn_width=4 * width, placement="sub",
            image_size=side, vocab_size=64010, max_length=1022, embedding_scale="none", **values,
        ))  # fmt: skip
        state, args = write_weights(made, "beit3")
    counted = sum(tensor.numel() for tensor in state.values()) / 1e6
    assert counted == pytest.approx(millions[size], abs=1)
    sizes = {
        "multiway": True, "encoder_embed_dim": width, "encoder_layers": layers, "img_size": side,
        "encoder_attention_heads": width // 64, "encoder_ffn_embed_dim": 4 * width,
        "patch_size": 16, "vocab_size": 64010, "max_source_positions": 1024,
    }  # fmt: skip
    assert args.items() >= sizes.items()
    assert load_sizes(state).heads == width // 64


def load_sizes(state: dict[str, Tensor]) -> Any:
    """The configuration that weights alone show."""
    form = next(form for form in FILE_FORMATS if form.fits(state, {}))
    return form.read(form.normalise(state, {}), {})


CUT = 9
BLOCK = {
    "self_attn_layer_norm.A": (WIDTH,), "self_attn.q_proj.A": (WIDTH, WIDTH),
    "self_attn.k_proj.A": (WIDTH, WIDTH), "self_attn.v_proj.A": (WIDTH, WIDTH),
    "self_attn.inner_attn_ln.A": (WIDTH,), "self_attn.out_proj.A": (WIDTH, WIDTH),
    "final_layer_norm.A": (WIDTH,), "ffn.A.fc1": (INNER, WIDTH), "ffn.A.ffn_layernorm": (INNER,),
    "ffn.A.fc2": (WIDTH, INNER),
}  # fmt: skip


def authors_state() -> dict[str, Tensor]:
    """The image half of the authors' BEiT3ForImageClassification, with numbers of its own."""
    torch.manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {
        "beit3.vision_embed.proj": (WIDTH, 3, 8, 8), "head": (5, WIDTH), "fc_norm": (WIDTH,),
    }  # fmt: skip
    for layer in range(2):
        names = {f"beit3.encoder.layers.{layer}.{name}": shape for name, shape in BLOCK.items()}
        shapes |= names
    state = {"beit3.vision_embed.cls_token": torch.randn(1, 1, WIDTH)}
    positions = torch.randn(CUT + 3, WIDTH)
    positions[:2] = 0  # never read: positions begin at 2
    state["beit3.encoder.embed_positions.A.weight"] = positions
    for name, shape in shapes.items():
        state[f"{name}.weight"] = torch.randn(shape)
        state[f"{name}.bias"] = torch.randn(shape[0])
    return state


def with_texts(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the other half of the authors' model."""
    whole = state | {n.replace(".A.", ".B."): t + 1 for n, t in state.items() if ".A." in n}
    whole["beit3.text_embed.weight"] = torch.randn(7, WIDTH)
    whole["beit3.vision_embed.mask_token"] = torch.randn(1, 1, WIDTH)
    return whole


@torch.no_grad()
def test_images_pass_through_the_experts_and_the_head_of_images() -> None:
    """By the classifier that timm reads too: torchscale, which most tests here need, is rare."""
    state = authors_state()
    classifier: Any = load_weights(state, ARGS)
    norms = {
        f"beit3.encoder.layer_norm.A.{kind}": torch.randn(WIDTH) for kind in ("weight", "bias")
    }
    heads = {f"{kind}_head.weight": torch.randn(WIDTH, WIDTH) for kind in ("vision", "language")}
    body = {n: t for n, t in (state | norms).items() if n.startswith("beit3.")}
    ours: Any = load_weights(with_texts(body) | heads | {"logit_scale": torch.tensor(2.5)}, ARGS)
    images = torch.randn(2, 3, 24, 24)
    tokens = classifier.encoder(classifier.class_token(classifier.embedding(images)))
    normed = F.layer_norm(tokens[:, 0], (WIDTH,), *norms.values())
    expected = F.normalize(normed @ heads["vision_head.weight"].T, dim=-1)
    texts = [np.array([3, 4, 5])] * 2
    check(ours(images, join_samples(IMAGE, images=2, alone=texts))[0], expected, "images")


def test_a_classifier_there_and_back_is_bit_equal() -> None:
    """The text half is left behind, and not written."""
    state = authors_state()
    whole = with_texts(state)
    for given in (state, whole, {n.removeprefix("beit3."): t for n, t in whole.items()}):
        ours: Any = load_weights(given, ARGS)
        assert ours.config.pooling == "mean_then_norm" and ours.config.image_size == 24
        back, args = write_weights(ours, "beit3")
        assert back.keys() == state.keys()
        assert all(torch.equal(back[name], tensor) for name, tensor in state.items())
        assert load_weights(back, args).config == ours.config


def test_timm_reads_the_same_model() -> None:
    """timm's own renaming of the authors' checkpoints, and its class."""
    pytest.importorskip("transformers")
    from tests.oracles.test_hf_timm import IMAGES, timm_model
    from tests.unit.nn.grids import timm_module

    state = authors_state()
    theirs = timm_model("beit3_base_patch16_224")
    renamed = timm_module("timm.models.vision_transformer").checkpoint_filter_fn(state, theirs)
    theirs.load_state_dict(renamed)
    with torch.no_grad():
        assert (theirs(IMAGES) - load_weights(state, ARGS)(IMAGES)).abs().max() <= 1e-5


@torch.no_grad()
def test_a_classifier_of_torchscales_own() -> None:
    """Its BEiT3 is the one that the authors' weights fit; the text half is left behind."""
    parts = {"beit3": beit3(False), "fc_norm": nn.LayerNorm(WIDTH), "head": nn.Linear(WIDTH, 5)}
    theirs = shaken(nn.ModuleDict(parts))
    features = parts["beit3"](None, IMAGES)["encoder_out"][:, 1:].mean(1)
    expected = parts["head"](parts["fc_norm"](features))
    check(load_weights(theirs.state_dict(), ARGS)(IMAGES), expected, "image classifier")
