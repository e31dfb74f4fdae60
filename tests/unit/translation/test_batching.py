"""Groups hold what they may, waste little, come in an order that resumes, and miss nothing."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from magneto.data.stream import BatchStream
from magneto.data.tokenizer import ByteTokenizer
from magneto.functional.cross_entropy import IGNORED
from magneto.translation.batching import (
    GroupMaker,
    cut_groups,
    endless,
    group_stream,
    temperature_shares,
)
from magneto.translation.prepare import ParallelSplit, TranslationVocabulary, load_vocabulary

DE, FR = ("de", "en"), ("en", "fr")


def vocabulary() -> TranslationVocabulary:
    return TranslationVocabulary(ByteTokenizer(), ["de", "en", "fr"])


def split(sizes: dict = {DE: 3000, FR: 300}) -> ParallelSplit:  # noqa: B006
    """Sides of lengths like those of captions; the first tokens of a side tell the example."""
    random = np.random.default_rng(0)
    ranges, lengths, stop = {}, [], 0
    for pair, size in sizes.items():
        ranges[pair] = (stop, stop + size)
        stop += size
        one = random.gamma(8, 2, size).astype(int) + 2
        lengths.append(np.stack([one, (one * random.normal(1.1, 0.2, size)).clip(2)], 1))
    lengths = np.concatenate(lengths).astype(int)
    offsets = np.concatenate([[0], lengths.ravel().cumsum()])
    tokens = np.arange(offsets[-1]) % 256
    numbers = np.arange(stop)
    for side in (0, 1):
        tokens[offsets[2 * numbers + side]] = numbers % 256
        tokens[offsets[2 * numbers + side] + 1] = numbers // 256
    return ParallelSplit(tokens.astype(np.uint16), offsets, ranges)


DIRECTIONS = [("en", "de"), ("en", "fr"), ("de", "en"), ("fr", "en")]


def maker(**sizes) -> GroupMaker:
    return GroupMaker(split(**sizes), vocabulary(), DIRECTIONS)


def stream(batch_size: int = 4, budget: int = 512, temperature: float = 1.0, **more) -> BatchStream:
    values = {"block": 100_000, "seed": 3, **more}
    return group_stream(maker(), batch_size, budget, temperature, **values)


def examples(group: dict) -> list[tuple[int, int]]:
    """Tag and example of each row of a group."""
    return [(row[0].item(), row[1].item() + 256 * row[2].item()) for row in group["source"]]


def test_an_epoch_has_every_example_once() -> None:
    groups, seen = stream(batch_size=1).batches(), Counter()
    while seen.total() < 6600:
        for group in next(groups)[0]:
            seen.update(examples(group))
    assert max(seen.values()) == 1 and len(seen) == 6600
    assert {tag for tag, _ in seen} == {260, 261, 262}


def test_groups_are_full_and_waste_little() -> None:
    groups = stream()
    cells = real = 0
    for step in range(60):
        for group in groups.batch(step)[0]:
            rows, width = group["target"].shape
            assert rows * max(width, group["source"].shape[1]) <= 512
            cells, real = cells + group["cells"], real + group["real"]
    assert 1 - real / cells < 0.1
    made, one = maker(), stream(batch_size=1)
    count = seen = 0
    while seen < sum(made.sizes):
        (group,) = one.plan(count)
        count, seen = count + 1, seen + len(group)
    assert count < 1.15 * sum(made.lengths(i, np.arange(n)).max(1).sum()
                              for i, n in enumerate(made.sizes)) / 512  # fmt: skip


def test_a_group_is_what_the_model_reads() -> None:
    made = maker()
    group = made.make(np.array([0, 2]), np.array([5, 9]))
    tag, end = vocabulary().tag, vocabulary().end
    for row, (example, to, side) in enumerate(((5, "de", 1), (9, "en", 0))):
        source = made.split.side(example, side).tolist()
        target = made.split.side(example, 1 - side).tolist()
        assert group["source"][row][group["source_mask"][row]].tolist() == [tag(to), *source, end]
        assert group["target"][row][: len(target) + 1].tolist() == [end, *target]
        answers = group["targets"][row]
        assert answers[answers != IGNORED].tolist() == [*target, end]
    assert group["predicted"] == (group["targets"] != IGNORED).sum()
    assert group["real"] == group["predicted"] + group["source_mask"].sum()
    assert group["cells"] == group["source"].numel() + group["target"].numel()


def test_pieces_make_up_the_same_batch() -> None:
    whole = [example for group in stream().batch(0)[0] for example in examples(group)]
    for parts in (2, 4):
        pieces = stream().batch(0, parts, range(parts))
        assert [len(piece) for piece in pieces] == [4 // parts] * parts
        assert [e for piece in pieces for group in piece for e in examples(group)] == whole
    assert examples(stream().batch(0, 2, [1])[0][0]) == examples(stream().batch(0, 2, [0, 1])[1][0])


@pytest.mark.parametrize("step", [0, 7, 200])
def test_a_batch_is_a_function_of_the_step(step: int) -> None:
    """Also where earlier blocks were never looked at."""
    one, other = stream(block=2000, temperature=3.0), stream(block=2000, temperature=3.0)
    for _ in zip(range(step), one.batches(), strict=False):
        pass
    for later in range(step, step + 30):
        for mine, theirs in zip(one.batch(later)[0], other.batch(later)[0], strict=True):
            assert mine.keys() == theirs.keys()
            assert all(
                torch.equal(torch.as_tensor(mine[k]), torch.as_tensor(theirs[k])) for k in mine
            )


def test_temperature() -> None:
    assert temperature_shares([900, 100], 1).tolist() == [0.9, 0.1]
    assert temperature_shares([900, 100], 2) == pytest.approx([0.75, 0.25])
    assert temperature_shares([900, 100], 1e9) == pytest.approx([0.5, 0.5])
    groups = stream(temperature=2.0, block=1000)
    rows: Counter = Counter()
    for step in range(300):
        for group in groups.batch(step)[0]:
            rows.update(example < 3000 for _, example in examples(group))
    share = np.sqrt(3000) / (np.sqrt(3000) + np.sqrt(300))
    assert rows[True] / rows.total() == pytest.approx(share, abs=0.02)


def test_small_directions_come_again_only_when_all_was_seen() -> None:
    numbers = np.concatenate([endless(10, start, start + 7, (1,)) for start in range(0, 70, 7)])
    assert all(sorted(numbers[i : i + 10]) == list(range(10)) for i in range(0, 70, 10))
    assert numbers[:10].tolist() != numbers[10:20].tolist()


def test_a_sentence_longer_than_the_budget_stands_alone() -> None:
    lengths = np.array([[5, 5], [90, 3], [5, 6]])
    groups = cut_groups(lengths, 40, np.random.default_rng(0))
    assert sorted(sorted(group.tolist()) for group in groups) == [[0, 2], [1]]


def test_vocabulary_round_trip(tmp_path: Path) -> None:
    made = vocabulary()
    [tokens] = made.encode_source(["Hé"], "fr")
    assert tokens == [made.tag("fr"), *"Hé".encode(), made.end]
    assert made.decode([*"Hé".encode(), made.tag("en"), made.end, 65]) == "Hé"
    made.save(tmp_path)
    again = load_vocabulary(tmp_path)
    assert (again.languages, again.size, again.end) == (made.languages, made.size, made.end)
    with pytest.raises(ValueError, match=r"no language 'dee'; did you mean de\?"):
        made.tag("dee")
    (tmp_path / "tags.txt").unlink()
    with pytest.raises(FileNotFoundError, match="no translation vocabulary"):
        load_vocabulary(tmp_path)
