"""Every example once an epoch, in an order that is a function of the step, however it is cut."""

from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from magneto.data.stream import (
    BatchStream,
    LazyBatches,
    Plan,
    by_length,
    cut_groups,
    evaluation_plans,
    example_stream,
    in_blocks,
    join_streams,
    map_tensors,
    named_tensors,
    shuffled,
    sort_by_length,
    to_device,
)


def taken(plan: Plan, steps: int) -> list[tuple[int, int]]:
    return [tuple(row) for step in range(steps) for row in plan(step).tolist()]


def numbers(plan: Plan, name: str = "") -> BatchStream:
    return example_stream(plan, lambda numbers, draws: numbers.tolist())


def test_an_epoch_has_every_example_once_with_its_own_draw() -> None:
    found = taken(shuffled(23, 4, 1), 23)
    assert len(set(found)) == 92
    epochs = [found[start : start + 23] for start in range(0, 92, 23)]
    for epoch, rows in enumerate(epochs):
        assert {draw for draw, _ in rows} == {epoch}
        assert sorted(number for _, number in rows) == list(range(23))
    assert [n for _, n in epochs[0]] != [n for _, n in epochs[1]]
    assert taken(shuffled(23, 4, 2), 23) != found
    assert numbers(shuffled(23, 4, 1)).examples == 23


def test_repeats_come_in_one_batch_with_draws_of_their_own() -> None:
    plan = shuffled(60, 12, 1, repeats=3)
    for epoch in range(2):
        found = [tuple(row) for step in range(5) for row in plan(5 * epoch + step).tolist()]
        assert len(set(found)) == 60
        assert {draw for draw, _ in found} == {3 * epoch, 3 * epoch + 1, 3 * epoch + 2}
        each = [number for _, number in found]
        assert len(set(each)) == 20
        for start in range(0, 60, 12):
            batch = each[start : start + 12]
            assert sorted(batch) == sorted(batch[:4] * 3)
            assert all(one != other for one, other in zip(batch[::2], batch[1::2], strict=True))


def test_copies_of_two_examples_at_most_are_in_other_batches() -> None:
    """Also if the copies do not divide a batch, and after an epoch that began within a batch."""
    plan, borders = shuffled(500, 32, 1, repeats=3), 0
    for batch in map(plan, range(80)):
        assert len(np.unique(batch, axis=0)) == 32
        if len({*(batch[:, 0] // 3)}) == 2:  # of two epochs
            borders += 1
            continue
        _, copies = np.unique(batch[:, 1], return_counts=True)
        assert (copies != 3).sum() <= 2 and (np.diff(batch[:, 1]) != 0).all()
    assert borders == 5


LENGTHS = np.random.default_rng(0).integers(4, 100, 1003)


def test_by_length_batches_are_of_like_length_in_every_epoch() -> None:
    for count in (203, 3, 16):
        found = [number for _, number in taken(by_length(LENGTHS[:count], 8, 1), 5 * count)]
        for start in range(0, len(found) // count * count, count):
            assert sorted(found[start : start + count]) == list(range(count)), "each once"
    plan = by_length(LENGTHS, 8, 1)
    assert numbers(plan).examples == len(LENGTHS)
    batches = [LENGTHS[plan(step)[:, 1]] for step in range(3 * 1003 // 8)]
    spread = [np.ptp(lengths) for lengths in batches]
    for start in (0, 130, 260):
        assert np.median(spread[start : start + 100]) <= 4
    plain = np.random.default_rng(0).permutation(LENGTHS)[:800].reshape(-1, 8)
    assert np.median(np.ptp(plain, axis=1)) > 50
    means = [lengths.mean() for lengths in batches[:50]]
    assert np.std(means) > 15 and means != sorted(means)
    steps = range(0, 251, 125)  # of three epochs
    other = by_length(LENGTHS, 8, 2)
    assert not any((plan(step)[:, 1] == other(step)[:, 1]).all() for step in steps)


def test_blocks_of_any_size_lie_end_to_end() -> None:
    made: list[int] = []

    def block(number: int) -> list[tuple[int, int]]:
        made.append(number)
        return [(number, place) for place in range(number % 3)]  # every third is empty

    plan = in_blocks(block, 4)
    found = [example for step in range(10) for example in plan(step)]
    assert found == [(n, place) for n in range(100) for place in range(n % 3)][:40]
    assert in_blocks(block, 4)(7) == plan(7) and numbers(plan).examples is None
    made.clear()
    in_blocks(block, 4, size=lambda number: number % 3)(7)
    assert len(made) <= 4  # those before it are not made where their sizes are known


def test_groups_of_like_length_are_within_their_budgets() -> None:
    sizes = np.array([[3, 2], [4, 1], [3, 1], [4, 5], [4, 3], [9, 9]])
    order = sort_by_length(sizes[:, 0], sizes[:, 1], np.random.default_rng(0))
    assert order.tolist() == [2, 0, 3, 4, 1, 5]  # odd lengths up, even ones down
    alike = sort_by_length(np.ones(9), np.ones(9), np.random.default_rng(0)).tolist()
    assert sorted(alike) == list(range(9)) != alike, "others meet in every epoch"
    groups = cut_groups(order, sizes, (12, 40))
    assert [group.tolist() for group in groups] == [[2, 0], [3, 4], [1], [5]]
    assert [group.tolist() for group in cut_groups(order, sizes, (8, 90))] == [
        [2, 0], [3, 4], [1], [5]
    ]  # fmt: skip
    assert list(LazyBatches([3, 1, 2], str)[1:]) == ["1", "2"]
    order = np.concatenate(evaluation_plans(50, 8)).tolist()
    assert sorted(order) == list(range(50)) and min(order[:8]) < 25 < max(order[:8])


def three(sizes: dict[str, int]) -> BatchStream:
    counts = {"images": 7, "texts": 11, "pairs": 5}
    streams = {name: numbers(shuffled(counts[name], size, 3)) for name, size in sizes.items()}
    return join_streams(streams, lambda pieces: pieces)


def test_joined_streams_have_epochs_of_their_own_and_are_cut_each_for_itself() -> None:
    sizes = {"images": 4, "texts": 6, "pairs": 3}
    seen = [three(sizes).batch(step)[0] for step in range(7)]
    for name, count in (("images", 7), ("pairs", 5)):
        found = [number for batch in seen for number in batch[name]]
        assert sorted(found[:count]) == sorted(found[count : 2 * count]) == list(range(count))
    pieces = three(sizes).batch(2, 3, [0, 1, 2])
    assert [len(piece["images"]) for piece in pieces] == [2, 1, 1]
    for name, size in sizes.items():
        assert [number for piece in pieces for number in piece[name]] == seen[2][name]
        assert len(seen[2][name]) == size
    with pytest.raises(ValueError, match="a batch of 2 pairs cannot be split into 3 pieces"):
        three({"images": 4, "texts": 4, "pairs": 2}).batch(0, 3)


def test_messages_name_the_examples() -> None:
    plan = shuffled(99, 40, 1)
    order = plan(0)[:, 1].tolist()
    stream = example_stream(plan, lambda numbers, draws: 1 / 0)
    with pytest.raises(ValueError, match=f"^example {order[0]}: ZeroDivisionError"):
        stream.batch(0)
    together = example_stream(plan, lambda numbers, draws: 1 / (len(numbers) < 2))
    words = f"^example {order[0]} to example {order[39]}, together: ZeroDivisionError"
    with pytest.raises(ValueError, match=words):
        together.batch(0)
    assert stream.names(0, 1, [0]).endswith(f", {order[31]} and 8 more")
    image, text = (shuffled(count, 1, 3)(0)[0, 1] for count in (7, 11))
    found = three({"images": 1, "texts": 1}).names(0, 1, [0])
    assert found == f"images: examples {image}; texts: examples {text}"


Pair = namedtuple("Pair", "first second")


@dataclass(frozen=True)
class Rows:
    values: torch.Tensor
    lengths: list[int]


def nested() -> dict:
    one = torch.ones(2)
    return {"rows": Rows(one, [1, 2]), "pair": Pair(one, "name"), "list": [one, (one, None)]}


def test_every_tensor_is_reached_and_the_structure_kept() -> None:
    doubled = map_tensors(nested(), lambda tensor: tensor * 2)
    assert isinstance(doubled["rows"], Rows) and doubled["rows"].lengths == [1, 2]
    assert isinstance(doubled["pair"], Pair) and doubled["pair"].second == "name"
    assert all(tensor.sum() == 4 for tensor in named_tensors(doubled).values())
    moved = to_device(nested(), torch.device("meta"))
    assert {tensor.device.type for tensor in named_tensors(moved).values()} == {"meta"}
