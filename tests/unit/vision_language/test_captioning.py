"""Image captioning: what words see and which are hidden, how captions are written and scored."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from magneto.data.tokenizer import ByteTokenizer
from magneto.vision_language.caption_decoding import CaptionSearch, CaptionWriter, left_to_right
from magneto.vision_language.captioning import cider
from magneto.vision_language.config import ImageCaptionerConfig
from magneto.vision_language.model import ImageCaptioner
from magneto.vision_language.samples import Samples, join_samples
from tests.unit.vision_language.small_tasks import SIZES, caption_task

SMALL: dict[str, Any] = {**SIZES, "vocab_size": 6, "max_length": 5}


def samples(*texts: list[int]) -> Samples:
    made = join_samples(5, paired=[np.array(text) for text in texts])
    return replace(made, packing=left_to_right(made.packing, 5))


def test_later_words_change_nothing_before_them() -> None:
    torch.manual_seed(0)
    config = ImageCaptionerConfig(**{**SIZES, "layers": 2, "vocab_size": 300})
    model, images = ImageCaptioner(config).eval(), torch.randn(2, 3, 8, 8)
    vision, language = model.encoder(images, samples([1, 2, 3, 4], [5, 6]))
    other_vision, other = model.encoder(images, samples([1, 2, 9, 8, 7, 7], [5, 6]))
    torch.testing.assert_close(other_vision, vision)  # no image sees a word
    torch.testing.assert_close(other[:2], language[:2])
    torch.testing.assert_close(other[-2:], language[-2:])
    assert (other[2] - language[2]).abs().max() > 1e-3
    seen = model.encoder(images + 1, samples([1, 2], [5]))[1]
    assert (seen[0] - language[0]).abs().max() > 1e-3  # words see the image


def test_all_but_the_beginning_can_be_hidden(tmp_path: Path) -> None:
    """As many as the ratio says, `</s>` among them; four fifths are masked, a tenth stays."""
    task = caption_task(tmp_path, mask_ratio=0.7)
    begin, mask, end = task.tokenizer.begin, task.tokenizer.mask, task.tokenizer.end
    row = np.array([begin, *range(65, 84), end])
    masked, kept, places = 0, 0, set()
    for number in range(200):
        seen, chosen = task.hidden(row, np.random.default_rng(number))
        assert len(chosen) == 14 and (np.diff(chosen) > 0).all()
        places |= set(chosen.tolist())
        assert (np.delete(seen, chosen) == np.delete(row, chosen)).all()
        masked += (seen[chosen] == mask).sum()
        kept += (seen[chosen] == row[chosen]).sum()
    assert places == set(range(1, 21))
    assert 0.77 < masked / 2800 < 0.83 and 0.07 < kept / 2800 < 0.13
    seen, chosen = task.hidden(row[[0, -1]], np.random.default_rng(0))
    assert chosen.tolist() == [1]
    task = caption_task(tmp_path)
    task.tokenizer.mask = None
    with pytest.raises(ValueError, match="has no mask token"):
        task.prepare()


def test_targets_are_what_was_hidden_and_the_loss_is_a_sum_over_them(tmp_path: Path) -> None:
    """With them in their places, the texts are captions of their own images."""
    task = caption_task(tmp_path)
    model = task.build_model()
    for batch in task.train_stream(4, 1).batch(0, 2, [0, 1]):
        given = batch["samples"]
        tokens = given.token_ids.clone()
        assert (tokens[batch["words"]] != batch["targets"]).any()
        tokens[batch["words"]] = batch["targets"]
        bounds = [*given.text_starts.tolist(), len(tokens)]
        for image, start, stop in zip(batch["images"], bounds[:-1], bounds[1:], strict=True):
            text = task.tokenizer.decode(tokens[start:stop].tolist())
            number = round((image[0, 0, 0].item() + 1) * 127.5 / 20)
            assert text.startswith((f"image {number} of", f"brightness {20 * number}"[:22]))
        loss, logits = task.loss(model, batch), model(batch["images"], given, batch["words"])
        smoothed, plain = (
            F.cross_entropy(logits, batch["targets"], reduction="sum", label_smoothing=smoothing)
            for smoothing in (0.1, 0.0)
        )
        torch.testing.assert_close(loss.total, smoothed)
        torch.testing.assert_close(loss.logs["nll"], plain.detach())
        assert loss.count == len(batch["words"]) and loss.logs["broken"] == 0
        torch.testing.assert_close(task.loss(model.eval(), batch).total, plain.detach())
        model.train()
    held = task.validation_batches()[0]
    tokens = held["samples"].token_ids.clone()
    tokens[held["words"]] = held["targets"]
    assert task.tokenizer.decode(tokens.tolist()).startswith("image ")  # the first caption
    other = caption_task(tmp_path)
    other.seed = 2
    assert torch.equal(other.validation_batches()[0]["words"], held["words"])
    batch = {"images": held["images"], "rows": torch.tensor([0, 1]),
             "broken": torch.tensor([False, True])}  # fmt: skip
    (first, second), count = ([task.finish(1)({**batch}, np.arange(2), np.full(2, draw))
                               for draw in (0, 1)], len(task.train_captions[1]))  # fmt: skip
    assert not torch.equal(first["words"], second["words"])
    assert first["broken"] == second["broken"] == round(0.7 * (count - 1))
    twice = {**batch, "rows": torch.tensor([1, 1])}
    one, other = (task.finish(seed)({**twice}, np.arange(2), np.zeros(2))["words"].view(2, -1)
                  for seed in (1, 2))  # fmt: skip
    assert not torch.equal(one[0], one[1] - count) and not torch.equal(one, other)


def test_metrics_and_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caption that is a reference scores most; one of a broken image is empty."""
    task = caption_task(tmp_path)
    sentences = [
        [*text.encode(), task.tokenizer.end] for text in ("image 3 of val", "brightness 120")
    ]
    written = torch.zeros(2, 20, dtype=torch.long)
    for row, tokens in enumerate(sentences):
        written[row, : len(tokens)] = torch.tensor(tokens)
    assert task.text(written[0].tolist()) == "image 3 of val"
    sums = {"loss": 6.0, "count": 3, "broken": 0}
    whole = (torch.tensor([0, 1]), written, torch.tensor([False, False]))
    found = task.summarise(sums, [whole])
    references = task.splits.validation.values("captions")
    scores = cider(["image 3 of val", "brightness 120"], references)
    assert found == {"loss": 2.0, "cider": pytest.approx(sum(scores) / 2)} and min(scores) > 1
    half = (*whole[:2], torch.tensor([False, True]))
    lost = task.summarise({**sums, "broken": 1}, [half])
    assert lost["broken"] == 1 and 0 < lost["cider"] < found["cider"]
    with pytest.raises(ValueError, match="at least one reference"):
        cider(["image 3 of val", "brightness 120"], [references[0], []])
    least = task.baseline()
    known = 1 + np.bincount(np.concatenate([text[1:] for text in task.train_captions]))
    chances = np.append(known, np.ones(260 - len(known))) / (known.sum() + 260 - len(known))
    asked = torch.cat([batch["targets"] for batch in task.validation_batches()])
    assert least["loss"] == pytest.approx(-np.log(chances)[asked].mean())
    task.training_texts = lambda: ["a dog", "image 3 of val", "image 3 of val", "x"]
    scores = cider(["image 3 of val"] * 2, references)
    assert task.baseline()["cider"] == pytest.approx(sum(scores) / 2)
    search = "magneto.vision_language.caption_decoding.CaptionWriter.search"
    monkeypatch.setattr(search, lambda _, images, how: [[*b"a" * how.beams]] * len(images))
    pictures = [task.splits.train.open(0)] * 2
    assert task.caption(task.build_model(), pictures, CaptionSearch(beams=2)) == ["aa", "aa"]


class SmallTokenizer(ByteTokenizer):
    """Two words, and the special tokens."""

    vocab_size, end, begin, pad = 6, 2, 3, 4
    mask: int | None = 5


def writer() -> CaptionWriter:
    torch.manual_seed(1)
    config = ImageCaptionerConfig(**SMALL)
    model = ImageCaptioner(config).eval()
    with torch.no_grad():
        model.word_head.weight.mul_(40)
    return CaptionWriter(model, config, SmallTokenizer())


def next_word(made: CaptionWriter, image: Tensor) -> Callable[[tuple[int, ...]], Tensor]:
    """Return what gives the log-probabilities after a beginning, each asked for by itself, once."""
    begin = made.tokenizer.begin
    return cache(lambda words: made.next_words(image, torch.tensor([[begin, *words]]))[0])


def log_probability(after: Callable[[tuple[int, ...]], Tensor], tokens: list[int]) -> float:
    return sum(after(tuple(tokens[:place]))[token].item() for place, token in enumerate(tokens))


class DrawnWriter(CaptionWriter):
    """Two words and the end, with probabilities that are drawn for each beginning and image."""

    def next_words(self, images: Tensor, written: Tensor) -> Tensor:
        seeds = [hash((int(images[0, 0, 0, 0]), *row)) for row in written.tolist()]
        draws = [torch.Generator().manual_seed(seed) for seed in seeds]
        return torch.stack([2 * torch.randn(3, generator=draw) for draw in draws]).log_softmax(-1)


def test_beams_stop_as_soon_as_nothing_better_can_come() -> None:
    """By a search that goes on to the end; with many beams, it tries all captions."""
    config = ImageCaptionerConfig(**{**SMALL, "max_length": 7})
    made = DrawnWriter(torch.nn.Identity(), config, SmallTokenizer())
    for number, penalty, beams in product(range(3), (0.0, 0.6, 2.0), (2, 3, 32)):
        image, ended = torch.full((1, 3, 8, 8), number), dict[tuple[int, ...], float]()
        after, going = next_word(made, image), {(): 0.0}
        for length in range(1, 7):
            grown = {(*words, token): total + float(after(words)[token])
                     for words, total in going.items() for token in range(3)}  # fmt: skip
            best = sorted(grown, key=grown.__getitem__, reverse=True)[: 2 * beams]
            done = [words for words in best if words[-1] == 2 or length == 6]
            ended |= {words: grown[words] / length**penalty for words in done}
            going = {words: grown[words] for words in best if words not in done}
            going = dict([*going.items()][:beams])
        expected = [token for token in max(ended, key=ended.__getitem__) if token != 2]
        assert made.search(image, CaptionSearch(beams=beams, length_penalty=penalty)) == [expected]


@torch.no_grad()
def test_one_beam_takes_greedy_words_and_images_do_not_mix() -> None:
    made, images = writer(), torch.randn(4, 3, 8, 8)
    greedy = made.greedy(images)
    assert greedy.shape == (4, 4) and set(greedy.flatten().tolist()) <= {0, 1, 2}
    for image, tokens in zip(images, greedy.tolist(), strict=True):
        written: list[int] = []
        while len(written) < 4 and 2 not in written:
            scores = made.next_words(image[None], torch.tensor([[3, *written]]))
            assert scores[0, 3:].eq(-torch.inf).all()  # special tokens are in no caption
            written.append(int(scores.argmax()))
        assert tokens[: len(written)] == written
        (found,) = made.search(image[None], CaptionSearch(beams=1, length_penalty=0.0))
        # It takes the same words, and may end before: where the end is second, and this is better.
        assert found == [token for token in written if token != 2][: len(found)]
        ended = [*found, 2][:4]
        after = next_word(made, image[None])
        logs = [log_probability(after, tokens) for tokens in (ended, written)]
        assert logs[0] >= logs[1] - 1e-5
