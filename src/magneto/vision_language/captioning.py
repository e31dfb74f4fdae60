"""Autoregressive image captioning, and its metric CIDEr-D.

CIDEr-D (arXiv 1411.5726) compares a caption with reference captions by n-grams, for n
from 1 to 4. The weight of an n-gram is its count times its inverse document frequency. For the
inverse document frequency, all reference captions of an image are one document. The CIDEr-D of a
caption therefore depends on the references of all images. The similarity to a reference is the
cosine of two vectors of weights. An n-gram's weight in the caption is clipped to the n-gram's
weight in the reference. If caption and reference differ in length, their similarity is reduced.
CIDEr-D is 10 times the mean similarity over n and over the references.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from magneto.data.stream import EVALUATION_SEED
from magneto.functional.cross_entropy import count_numbers, frequency_sums
from magneto.language.config import MaskedTextDataConfig
from magneto.language.masked_lm import Masking
from magneto.training.task import Figure, Loss, Scores
from magneto.vision.batches import Finish
from magneto.vision.decoding import Picture
from magneto.vision_language.caption_decoding import CaptionSearch, CaptionWriter, left_to_right
from magneto.vision_language.config import CaptioningDataConfig, ImageCaptionerConfig
from magneto.vision_language.finetuning import CaptionedTask
from magneto.vision_language.model import ImageCaptioner
from magneto.vision_language.samples import concatenated, join_samples


class ImageCaptioning(CaptionedTask):
    """Image captioning with an `ImageCaptioner`. The loss is in nats per masked word."""

    primary_metric = "cider"
    unit = "images"
    model_config: ImageCaptionerConfig
    data_config: CaptioningDataConfig

    def build_model(self) -> ImageCaptioner:
        return ImageCaptioner(self.sized_config())

    @cached_property
    def masking(self) -> Masking:
        return Masking(MaskedTextDataConfig(corruption="bert"), self.tokenizer)

    def check(self) -> None:
        super().check()
        self.masking  # noqa: B018  raises before long work if the tokenizer has no mask token

    def hidden(self, row: np.ndarray, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        count = max(1, round(self.data_config.mask_ratio * (len(row) - 1)))
        chosen = 1 + np.sort(draw.choice(len(row) - 1, count, replace=False))
        seen = row.copy()
        seen[chosen] = self.masking.corrupt(row[chosen], draw)
        return seen, chosen

    def mask_words(
        self, texts: Sequence[np.ndarray], keys: Sequence[Sequence[int]]
    ) -> tuple[dict[str, Any], np.ndarray]:
        """Return "samples", "words" and "targets" of masked captions, and counts of masked words.

        `keys` has the seed of each caption's masks. The attention mask in "samples" is
        left-to-right.
        """
        both = [self.hidden(text, np.random.default_rng(list(key)))
                for text, key in zip(texts, keys, strict=True)]  # fmt: skip
        image_tokens = self.model_config.image_tokens
        samples = join_samples(image_tokens, paired=[seen for seen, _ in both])
        starts = samples.text_starts.tolist()
        places = [start + chosen for start, (_, chosen) in zip(starts, both, strict=True)]
        targets = [text[chosen] for text, (_, chosen) in zip(texts, both, strict=True)]
        parts = {
            "samples": replace(samples, packing=left_to_right(samples.packing, image_tokens)),
            "words": torch.from_numpy(concatenated(places)),
            "targets": torch.from_numpy(concatenated(targets)),
        }
        return parts, np.array([len(chosen) for _, chosen in both])

    def finish(self, seed: int) -> Finish:
        """Return a function that adds captions to a batch. Every epoch masks different words.

        A pair with an unreadable image is replaced by another pair. The entry "broken" counts the
        masked words of such replacements.
        """
        captions = self.train_captions

        def add_captions(
            batch: dict[str, Any], numbers: np.ndarray, draws: np.ndarray
        ) -> dict[str, Any]:
            keys = [(seed, int(draw), int(number), 1)
                    for number, draw in zip(numbers, draws, strict=True)]  # fmt: skip
            texts = [captions[row] for row in batch["rows"].tolist()]
            hidden, counts = self.mask_words(texts, keys)
            broken = int(counts[batch["broken"].numpy()].sum())
            return {"images": batch["images"], **hidden, "broken": torch.tensor(broken)}

        return add_captions

    def validation_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        rows = batch["rows"].tolist()
        texts = [self.validation_tokens[row][0] for row in rows]
        keys = [(EVALUATION_SEED, row) for row in rows]
        hidden, _ = self.mask_words(texts, keys)
        return {**batch, **hidden}

    def dummy_batch(self, examples: int) -> dict[str, Any]:
        texts = self.longest_texts(examples)
        keys = [(self.seed, number) for number in range(examples)]
        hidden, _ = self.mask_words(texts, keys)
        return {"images": self.black_images(examples), **hidden, "broken": torch.tensor(0)}

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> Loss:
        """Return the loss, and log "nll" and "broken".

        The logged "nll" is the loss without label smoothing. Pairs with an unreadable image are
        replaced by other pairs. The logged "broken" is the share of the masked words that are in
        such replacements.
        """
        found = model(batch["images"], batch["samples"], batch["words"], batch["targets"])
        return Loss(found.total, found.count, {"nll": found.nll, "broken": batch["broken"]})

    def score(self, model: nn.Module, batch: dict[str, Any]) -> Scores:
        found = model(batch["images"], batch["samples"], batch["words"], batch["targets"])
        written = CaptionWriter(model, self.model_config, self.tokenizer).greedy(batch["images"])
        sums = {"loss": found.nll, "count": found.count, "broken": batch["broken"].sum()}
        return Scores(sums, (batch["rows"], written, batch["broken"]))

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return "loss" per masked word, and "cider", the mean CIDEr-D of greedy captions.

        Papers report CIDEr-D multiplied by 100. The captions of unreadable images are empty. The
        metric "broken" counts the unreadable images, and is absent if there are none.
        """
        rows, written, broken = map(torch.cat, zip(*predictions, strict=True))
        captions = [
            "" if lost else self.text(tokens)
            for tokens, lost in zip(written.tolist(), broken.tolist(), strict=True)
        ]
        scores = cider(captions, self._references(rows.tolist()))
        found = {"loss": sums["loss"] / sums["count"], "cider": float(np.mean(scores))}
        return found | ({"broken": sums["broken"]} if sums["broken"] else {})

    def text(self, tokens: Sequence[int]) -> str:
        end = self.tokenizer.end
        stop = tokens.index(end) if end in tokens else len(tokens)
        return self.tokenizer.decode(list(tokens[:stop])).strip()

    def _references(self, rows: Iterable[int]) -> list[Sequence[str]]:
        captions = self.splits.validation.values("captions")
        return [captions[row] for row in rows]

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        self.prepare()  # the length of captions may depend on the data
        size = self.tokenizer.vocab_size
        train = np.concatenate([text[1:] for text in self.train_captions])
        batches = list(islice(self.validation_batches(), limit))
        asked = torch.cat([batch["targets"] for batch in batches]).numpy()
        sums = frequency_sums(count_numbers(train, size), count_numbers(asked, size))
        common = Counter(self.training_texts()).most_common(1)[0][0]
        references = self._references(torch.cat([batch["rows"] for batch in batches]).tolist())
        scores = cider([common] * len(references), references)
        return {"loss": sums["loss"] / len(asked), "cider": float(np.mean(scores))}

    def caption(self, model: Any, pictures: Sequence[Picture], how: CaptionSearch) -> list[str]:
        images = self.read_pictures(pictures)
        writer = CaptionWriter(model, self.model_config, self.tokenizer)
        found = writer.search(images.to(next(model.parameters()).device), how)
        return [self.text(tokens) for tokens in found]


@torch.no_grad()
def figures(task: ImageCaptioning, model: nn.Module) -> Sequence[Figure]:
    from magneto.vision.figures import readable
    from magneto.vision_language.figures import SHOWN, captions_figure

    held, (found,) = task.splits.validation, readable(task.validation_batches(), 1, "rows")
    if not len(found):
        return []
    rows = found[:SHOWN].tolist()
    pictures = [held.open(row) for row in rows]
    return [captions_figure(held, rows, task.caption(model, pictures, CaptionSearch()))]


LONGEST = 4
# Standard deviation of the penalty on a difference in length, in words.
SIGMA = 6.0
SCALE = 10.0

# Words by Stanford's PTBTokenizer (Penn Treebank's rules), as in the official code, which then
# drops `PUNCTUATION`. The alternatives are tried in order from the end of the previous word.
APOSTROPHE = r"['\u2019\u00b4]"
LETTER, ALPHANUMERIC = r"[^\W\d_]", r"[^\W_]"
FIGURE = r"(?:\d*(?:[.,]\d+)+|\d+(?:[.:,]\d+)*)"
PART = rf"(?:{FIGURE}(?!{ALPHANUMERIC})|{ALPHANUMERIC}+)"
ENDING = rf"{APOSTROPHE}(?:[smd]|re|ve|ll)(?!{LETTER})"
ABBREVIATION = (
    "mrs?|ms|drs?|profs?|gen|col|lt|sgt|capt|rev|gov|sen|rep|pres|st|ste|mt|ft|ave|blvd|rd|dept|jr|"
    "sr|bros|inc|cos?|corp|ltd|vs|etc|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|mon|tues?|wed|"
    "thurs?|thu|fri"
)
WORD = re.compile(
    "|".join([
        r"(?:\d{1,4}[- \u00a0])?\d{1,4}/\d{1,4}(?![\w/])",  # 5 1/2
        rf"{LETTER}(?:\.{LETTER})+\.(?!\w)",  # u.s.
        rf"(?:{ABBREVIATION})\.(?!\w)",
        rf"{LETTER}*[^\W\d_n](?=n{APOSTROPHE}t(?!{LETTER}))",  # do, of don't
        rf"n{APOSTROPHE}t(?!{LETTER})",
        rf"{ALPHANUMERIC}+(?={ENDING})",  # dog, of dog's
        ENDING,
        rf"{APOSTROPHE}t(?=(?:is|was)(?!\w))",
        rf"{APOSTROPHE}(?:n{APOSTROPHE}?|em|till?|cause|[2-9]0s|\d\d)(?!\w)",  # rock 'n' roll
        rf"y{APOSTROPHE}(?={LETTER})",  # y', of y'all
        rf"(?:{LETTER}|{LETTER}*[aeiouy]){APOSTROPHE}{LETTER}{{2,}}",  # o'clock, ma'am
        rf"{LETTER}+(?:[+&]{LETTER}+)+",  # b&w
        rf"{ALPHANUMERIC}+(?:-{LETTER}+){{0,2}}(?:/{ALPHANUMERIC}+(?:-{LETTER}+){{0,2}}){{1,2}}",
        rf"{LETTER}{ALPHANUMERIC}*(?:[.!?]{LETTER}{ALPHANUMERIC}*)+",  # side.the
        rf"{PART}(?:[-_]{PART})+",  # black-and-white, 5-year-old
        rf"[-+]?{FIGURE}(?!{ALPHANUMERIC})",  # 1,000, 10:30, -5
        rf"{ALPHANUMERIC}+",
        rf"[#@]{LETTER}\w*",
        r"[?!]+|\.\.+|-+|#+|@+|_+|\S",
    ])
)  # fmt: skip
# Words that are split after their third letter.
TWO_WORDS = ("cannot", "gonna", "gotta", "lemme", "gimme", "wanna")
SYMBOLS = {
    "(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-",
    "\u00a2": "cents", "\u00a3": "#", "\u20ac": "$", "\u00bc": "1\\/4", "\u00bd": "1\\/2",
    "\u00be": "3\\/4",
}  # fmt: skip
TREEBANK = str.maketrans({"\u2019": "'", "\u00b4": "'", "\u00a0": " ", "/": "\\/", "*": "\\*"})
# The official list names brackets in capitals only ("-LRB-"), so "-lrb-" of lower-case words stays.
PUNCTUATION = re.compile(
    r"[.,:;?!'\"`\u00b4\u2018-\u201f\u2039\u203a\u00ab\u00bb\u2013-\u2015\u2026]|\.{2,}|-{1,4}"
)

Ngram = tuple[str, ...]
Vector = dict[Ngram, float]


def caption_words(text: str) -> list[str]:
    """Return the words of a caption in lower case, without punctuation.

    The rules are those of the Java tokenizer of the official code. The text "don't" is two words.
    The texts "left-hand", "1,000" and "b&w" are one word each. The characters "&" and "%" stay.
    Rules for British spellings, addresses, telephone numbers, markup and emoticons are not
    implemented.
    """
    words: list[str] = []
    for word in WORD.findall(text.lower().replace("&amp;", "&")):
        if not PUNCTUATION.fullmatch(word):
            words += [word[:3], word[3:]] if word in TWO_WORDS else [word]
    return [SYMBOLS.get(word, word.translate(TREEBANK)) for word in words]


def ngrams(words: Sequence[str]) -> Counter[Ngram]:
    return Counter(
        tuple(words[start : start + size])
        for size in range(1, LONGEST + 1)
        for start in range(len(words) - size + 1)
    )


def cider(captions: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Return the CIDEr-D score of each image's caption, given the image's reference captions."""
    if not all(references):
        raise ValueError("CIDEr needs at least one reference caption for each image")
    known = [[ngrams(caption_words(text)) for text in texts] for texts in references]
    images_with: Counter[Ngram] = Counter(ngram for texts in known for ngram in set().union(*texts))
    rarity = math.log(len(references))

    def weight_vectors(counts: Counter[Ngram]) -> list[Vector]:
        made: list[Vector] = [{} for _ in range(LONGEST)]
        for ngram, count in counts.items():
            rare = rarity - math.log(max(1.0, images_with[ngram]))
            made[len(ngram) - 1][ngram] = count * rare
        return made

    scores = []
    for caption, texts in zip(captions, known, strict=True):
        counts = ngrams(caption_words(caption))
        mine = weight_vectors(counts)
        found = [similarity(mine, weight_vectors(text), count_bigrams(counts) - count_bigrams(text))
                 for text in texts]  # fmt: skip
        scores.append(SCALE * sum(found) / len(found))
    return scores


def count_bigrams(counts: Counter[Ngram]) -> int:
    return sum(count for ngram, count in counts.items() if len(ngram) == 2)  # the official length


def similarity(mine: Sequence[Vector], other: Sequence[Vector], longer: int) -> float:
    total = 0.0
    for left, right in zip(mine, other, strict=True):
        product = sum(min(w, right[n]) * right[n] for n, w in left.items() if n in right)
        length = math.hypot(*left.values()) * math.hypot(*right.values())
        total += product / length if length else product
    return total * math.exp(-(longer**2) / (2 * SIGMA**2)) / LONGEST
