"""Codes of patches: which are hidden, tokenizers, the codebook and what trains it."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from magneto.config import ConfigError
from magneto.recipe import RUN_FILE, load_recipe
from magneto.vision.config import ImageModelConfig, ImageTokenizerConfig
from magneto.vision.targets import (
    BlockMasking,
    Codebook,
    CodeTargets,
    PatchTokenizer,
    k_means,
    load_tokenizer,
    nearest,
    two_layers,
    weights_digest,
)
from magneto.vision.tokenizer import K_MEANS_ITERATIONS, TokenizerDistillation
from magneto.vision.transforms import InputFormat
from tests.unit.vision.small import PATCHES, built, small_task

pytest.importorskip("sklearn")


def test_the_count_is_exact_on_any_grid() -> None:
    for side, ratio in itertools.product((2, 3, 5, 16), (0.01, 0.4, 0.75, 0.99)):
        masking, random = BlockMasking(side, side, ratio), np.random.default_rng(0)
        assert masking.count == min(max(1, round(ratio * side**2)), side**2 - 1)
        for _ in range(20):
            drawn = masking.draw(random)
            assert len(drawn) == masking.count == len(set(drawn.tolist()))
            assert (np.diff(drawn) > 0).all() and drawn[0] >= 0 and drawn[-1] < side**2


def patch_config(**changes: Any) -> ImageModelConfig:
    return ImageModelConfig(**{**PATCHES, "codes": 4, **changes})


def flat_patches() -> torch.Tensor:
    """Images of patches in four shades, a little noisy."""
    draw = torch.Generator().manual_seed(0)
    shades = torch.tensor([-1.0, -0.3, 0.3, 1.0])[torch.randint(4, (20, 1, 4, 4), generator=draw)]
    large = shades.repeat_interleave(2, -1).repeat_interleave(2, -2)
    return large + 0.02 * torch.randn(20, 1, 8, 8, generator=draw)


def test_patches_that_look_alike_have_one_code() -> None:
    images = flat_patches()
    # From some starts two shades share a code; the best of a few does not.
    found = [
        PatchTokenizer.fit(patch_config(), [images[:10], images[10:]], seed) for seed in range(8)
    ]
    codes = max((t.encode(images) for t in found), key=lambda codes: len(codes.unique()))
    means = images.unfold(2, 2, 2).unfold(3, 2, 2).mean((-1, -2)).flatten(1)
    spread = torch.stack([means[codes == code].std() for code in range(4)])
    assert codes.shape == (20, 16) and spread.max() < 0.1


def test_the_tokenizer_reads_pixels_from_minus_one_to_one() -> None:
    tokenizer = PatchTokenizer.fit(patch_config(channels=3), [torch.randn(4, 3, 8, 8)], 0)
    pixels = torch.randint(256, (8, 8, 3), dtype=torch.uint8).numpy()
    half = torch.from_numpy(InputFormat(8, 3, "half").normalise(pixels))[None]
    for kind in ("half", "imagenet"):
        targets = CodeTargets(tokenizer, kind)
        images = torch.from_numpy(InputFormat(8, 3, kind).normalise(pixels))[None]
        assert torch.allclose(targets.view(images), half, atol=1e-6)
        assert torch.equal(targets(images), tokenizer.encode(half))


def test_a_runs_tokenizer(tokenizer_run: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_run, patch_config())
    targets = CodeTargets(tokenizer, "half").eval()
    images = flat_patches()
    assert torch.equal(targets(images), tokenizer.encode(images))
    other = PatchTokenizer.fit(patch_config(), [images], 0)
    assert weights_digest(tokenizer) != weights_digest(other)
    with pytest.raises(ValueError, match=r"differs from the recipe; set --model.patch_size 2"):
        load_tokenizer(tokenizer_run, patch_config(patch_size=4))
    load_recipe("causal-lm/tiny").save(tmp_path / RUN_FILE)
    with pytest.raises(ConfigError, match="does not support causal-lm"):
        small_task("image-modelling", data__image_tokenizer=str(tmp_path), model__codes=None)


SIZES = {**PATCHES, "code_width": 4, "decoder_depth": 1, "target_width": 5}


def model_of(**changes: Any) -> TokenizerDistillation:
    torch.manual_seed(0)
    return TokenizerDistillation(ImageTokenizerConfig(**{**SIZES, **changes}))


def test_an_image_becomes_a_code_per_patch_and_the_decoder_sees_codes_alone() -> None:
    for token in ("none", "learned"):
        model, images = model_of(class_token=token).eval(), torch.randn(3, 1, 8, 8)
        predictions, codes, distances = model(images)
        assert predictions.shape == (3, 16, 5) and codes.shape == distances.shape == (3, 16)
        assert torch.equal(model.tokenizer.encode(images), codes)
        features = model.tokenizer.features(images)
        assert torch.allclose(features.norm(dim=-1), torch.ones(3, 16))
        vectors = model.tokenizer.codebook.directions()[codes]
        assert torch.allclose(distances, (features - vectors).square().mean(-1), atol=1e-6)
        assert torch.allclose(model.decoder(vectors), predictions, atol=1e-5)


def test_a_head_has_two_layers_with_tanh_between() -> None:
    head, x = two_layers(3, 2), torch.randn(4, 3)
    torch.testing.assert_close(head(x), head[-1](head[0](x).tanh()))


def test_gradients_pass_straight_through() -> None:
    """What the decoder wants of a code's vector, the encoder gets for its feature."""
    model, images = model_of(), torch.randn(2, 1, 8, 8)
    features = model.tokenizer.features(images).detach().requires_grad_()
    model.tokenizer.features = lambda images: features  # type: ignore[method-assign]
    predictions, codes, _ = model(images)
    predictions.sum().backward()
    vectors = model.tokenizer.codebook.directions()[codes].requires_grad_()
    model.decoder(vectors).sum().backward()
    assert features.grad is not None and vectors.grad is not None
    assert features.grad.abs().max() > 0
    assert torch.allclose(features.grad, vectors.grad, atol=1e-5)
    trained = {name for name, _ in model.named_parameters()}
    assert not any("codebook" in name for name in trained)


def test_codes_do_not_depend_on_autocast_in_the_codebook() -> None:
    model, images = model_of().eval(), torch.randn(2, 1, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        features = model.tokenizer.features(images)
        codes, _ = model.tokenizer.quantise(features)
    assert features.dtype == torch.float32
    assert torch.equal(codes, model.tokenizer.quantise(features)[0])


def test_the_codebook_begins_with_k_means_of_several_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 16 codes: three batches of 32 images of 16 patches.
    monkeypatch.setattr("magneto.vision.tokenizer.K_MEANS_PATCHES", 70)
    task = small_task("image-tokenizer")
    model = built(task)
    stream = task.train_stream(32, 1).batches(2, [0, 1])
    pieces = [next(stream) for _ in range(3)]
    asked = iter([*pieces, None])
    gathered: list[int] = []

    def gather(rows: torch.Tensor) -> torch.Tensor:
        gathered.append(len(rows))
        return torch.cat((rows, rows)) if len(rows) == 16 else rows  # a second rank's codebook

    task.begin_training(model, asked, gather)  # type: ignore[arg-type]
    assert gathered == [512, 512, 512, 16] and next(asked) is None
    images = torch.cat([piece["images"] for batch in pieces for piece in batch])
    with torch.no_grad():
        rows = model.tokenizer.features(images).flatten(0, 1)
    expected = k_means(rows, 16, K_MEANS_ITERATIONS, task.seed)
    assert torch.allclose(model.tokenizer.codebook.vectors, expected, atol=1e-5)


def test_losses_and_scores_are_of_patches() -> None:
    task = small_task("image-tokenizer", model__commitment=0.5)
    model, batch = built(task).eval(), dict(task.validation_batches()[0])
    with torch.no_grad():
        loss, whole = task.loss(model, batch), task.score(model, batch).sums
        (predictions, codes, distances), wanted = (
            model(batch["images"]),
            task.teacher(batch["images"]),
        )
        batch["broken"] = torch.arange(len(codes)) > 1
        two = task.score(model, batch).sums
    cosine = F.cosine_similarity(predictions, wanted, dim=-1)
    expected = (1 - cosine).sum() + 0.5 * distances.sum()
    assert torch.allclose(loss.total, expected, rtol=1e-5) and loss.count == codes.numel()
    assert torch.allclose(loss.logs["cosine"], cosine.sum(), rtol=1e-5)
    assert torch.equal(whole["used"], codes.flatten().bincount(minlength=16).float())
    assert torch.equal(two["used"], codes[:2].flatten().bincount(minlength=16).float())
    assert whole["count"] == codes.numel() and two["count"] == 32
    for name, each in (("apart", 1 - cosine), ("distance", distances)):
        assert torch.allclose(whole[name], each.sum(), rtol=1e-5)
        assert torch.allclose(two[name], each[:2].sum(), rtol=1e-5)
    sums = {"apart": 4.0, "distance": 1.0, "count": 16.0, "used": [4.0] * 4 + [0.0] * 12}
    found = task.summarise(sums, ())
    assert found["codebook_use"] == 0.25
    assert found["codebook_perplexity"] == pytest.approx(4.0)
    assert found["loss"] == pytest.approx(4.5 / 16) and found["cosine"] == 0.75


def test_the_baseline_is_the_mean_direction() -> None:
    task = small_task("image-tokenizer")
    train = torch.cat([b["images"] for b in list(task.fixed_batches(task.splits.train))[:8]])
    held = torch.cat([b["images"] for b in task.validation_batches()])
    mean = F.normalize(task.teacher(train), dim=-1).flatten(0, 1).mean(0)
    cosine = F.cosine_similarity(task.teacher(held), mean.expand(1, 1, -1), dim=-1).mean()
    found = task.baseline()
    assert found["cosine"] == pytest.approx(cosine.item(), abs=1e-5)
    assert found["loss"] == pytest.approx(1 - cosine.item(), abs=1e-5)
    assert task.baseline(limit=1) != found


CODES, WIDTH = 8, 4


def codebook(revive_below: float = 0.0, decay: float = 0.9, codes: int = CODES) -> Codebook:
    torch.manual_seed(0)
    made = Codebook(codes, WIDTH, decay, revive_below)
    made.vectors.copy_(made.directions())
    return made


def alone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def released_rule(vectors: torch.Tensor, rows: torch.Tensor, decay: float) -> torch.Tensor:
    """The rule of BEiT v2's code, code by code."""
    numbers = (rows @ vectors.t()).argmax(-1)
    moved = []
    for code, vector in enumerate(vectors):
        own = rows[numbers == code]
        mean = F.normalize(own.mean(0), dim=0) if len(own) else vector
        moved.append(F.normalize(decay * vector + (1 - decay) * mean, dim=0))
    return torch.stack(moved)


def test_without_revival_it_follows_the_released_rule() -> None:
    book, expected, use = codebook(), codebook().vectors.clone(), torch.full((CODES,), 1 / CODES)
    for step in range(5):
        draw = torch.Generator().manual_seed(step)
        rows = F.normalize(torch.randn(40, WIDTH, generator=draw), dim=-1).requires_grad_()
        numbers, vectors = book(rows)
        assert torch.equal(numbers, (rows.detach() @ book.vectors.t()).argmax(-1))
        assert torch.equal(vectors, book.directions()[numbers]) and not vectors.requires_grad
        book.end_step(alone)
        expected = released_rule(expected, rows.detach(), 0.9)
        use = 0.9 * use + 0.1 * numbers.bincount(minlength=CODES) / 40
        assert torch.allclose(book.vectors, expected, atol=1e-6)
        assert torch.allclose(book.use, use)
    assert not book.seen.any()


def two_clusters(count: int = 64) -> torch.Tensor:
    """Features that lie about two directions, which one code stands for."""
    draw = torch.Generator().manual_seed(0)
    centres = torch.tensor([[1.0, 0.3, 0.0, 0.0], [1.0, -0.3, 0.0, 0.0]]).repeat(count // 2, 1)
    return F.normalize(centres + 0.02 * torch.randn(count, WIDTH, generator=draw), dim=-1)


def lopsided() -> Codebook:
    """A codebook whose first code stands for all features, and the others for none."""
    book = codebook(0.5, codes=4)
    rows = torch.tensor([[1.0, 0, 0, 0], [-0.1, 1, 0, 0], [-1, 0, 0.1, 0], [-1, 0, 0, 0.1]])
    book.vectors.copy_(F.normalize(rows, dim=-1))
    return book


def use(book: Codebook, rows: torch.Tensor) -> torch.Tensor:
    """Take a step; return the codes before it."""
    numbers, _ = book(rows)
    book.end_step(alone)
    return numbers


def test_a_code_out_of_use_takes_half_of_a_much_used_one() -> None:
    book, rows = lopsided(), two_clusters()
    for _ in range(100):
        if not book.revived:
            assert not use(book, rows).any()
    assert book.revived == 1  # one code gives, once
    assert torch.isclose(book.use.sum(), torch.ones(()))
    taker = int(book(rows)[0].max())
    # It stands for one of the two clusters, and has half of the giver's use.
    centres = F.normalize(torch.stack((rows[::2].mean(0), rows[1::2].mean(0))), dim=-1)
    assert (centres @ book.vectors[taker]).max() > 0.999
    assert book.use[taker] == book.use[0]
    numbers = [use(book, rows) for _ in range(30)][-1]
    assert not set(numbers[::2].tolist()) & set(numbers[1::2].tolist())
    assert len(numbers.unique()) == 4  # soon every code is used


def test_clusters_far_apart_are_found(monkeypatch) -> None:
    draw = torch.Generator().manual_seed(0)
    centres = torch.eye(6)
    rows = F.normalize(centres.repeat(50, 1) + 0.05 * torch.randn(300, 6, generator=draw), dim=-1)
    # From rows drawn at random two may begin in one cluster: from many starts one finds all six.
    best = max(
        (k_means(rows, 6, 10, seed) for seed in range(20)),
        key=lambda found: float((rows @ found.t()).amax(-1).sum()),
    )
    assert (centres @ best.t()).amax(-1).min() > 0.99
    assert torch.allclose(best.norm(dim=-1), torch.ones(6))
    means = torch.stack([rows[nearest(rows, best) == number].mean(0) for number in range(6)])
    assert torch.allclose(F.normalize(means, dim=-1), best, atol=1e-6)
    # Fewer rows than clusters; rows in pieces.
    found = k_means(torch.eye(3), 8, 5, 0)
    assert torch.allclose(found.norm(dim=-1), torch.ones(8))
    assert torch.isclose(torch.eye(3) @ found.t(), torch.ones(())).any(-1).all()
    monkeypatch.setattr("magneto.vision.targets.CHUNK", 8)
    assert torch.equal(nearest(rows, best), (rows @ best.t()).argmax(-1))


def test_a_code_with_one_feature_gives_none() -> None:
    """Its smaller half is empty."""
    book = lopsided()
    for _ in range(100):
        use(book, two_clusters()[:1])
    assert book.revived == 0
