"""Every example once an epoch, each with the number of its draw, however batches are cut."""

import numpy as np

from magneto.data.augmented_examples import AugmentedExamples
from magneto.data.batching import ShuffledExamples


def both(numbers: np.ndarray, draws: np.ndarray) -> list[tuple[int, int]]:
    return list(zip(numbers.tolist(), draws.tolist(), strict=True))


def taken(stream: AugmentedExamples, batches: int, parts: int = 1) -> list[tuple[int, int]]:
    pieces = [stream.next(parts, range(parts)) for _ in range(batches)]
    return [pair for batch in pieces for piece in batch for pair in piece]


def test_the_order_is_that_of_shuffled_examples_and_a_draw_is_an_epoch() -> None:
    plain = ShuffledExamples(10, 4, 3, lambda numbers: numbers.tolist())
    wanted = [number for _ in range(10) for number in plain.next(1, [0])[0]]
    found = taken(AugmentedExamples(10, 4, 3, both), 10)
    assert [number for number, _ in found] == wanted
    assert [draw for _, draw in found] == [place // 10 for place in range(40)]


def test_exactly_once_when_the_cut_changes_and_a_run_resumes() -> None:
    whole = taken(AugmentedExamples(23, 4, 1, both), 23)
    assert len(set(whole)) == 92  # four epochs of 23, none twice
    stream = AugmentedExamples(23, 4, 1, both)
    first = taken(stream, 5, parts=2)
    resumed = AugmentedExamples(23, 4, 1, both)
    resumed.load_state_dict(stream.state_dict())
    assert first + taken(resumed, 18, parts=4) == whole


def test_repeats_come_in_one_batch_with_draws_of_their_own() -> None:
    stream = AugmentedExamples(60, 12, 1, both, repeats=3)
    for epoch in range(2):
        found = taken(stream, 5)
        assert len(set(found)) == 60
        assert {draw for _, draw in found} == {3 * epoch, 3 * epoch + 1, 3 * epoch + 2}
        numbers = [number for number, _ in found]
        assert len(set(numbers)) == 20
        for start in range(0, 60, 12):
            batch = numbers[start : start + 12]
            assert sorted(batch) == sorted(batch[:4] * 3)
            assert all(one != other for one, other in zip(batch[::2], batch[1::2], strict=True))


def test_messages_name_the_example() -> None:
    stream = AugmentedExamples(5, 2, 1, both)
    for _ in range(4):
        name = stream.name_next(1, [0])
        found = taken(stream, 1)
        assert name == f"examples {', '.join(str(number) for number, _ in found)}"
