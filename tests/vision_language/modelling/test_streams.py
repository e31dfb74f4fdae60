"""Three streams as one."""

import numpy as np
import pytest

from magneto.data.batching import ShuffledExamples
from magneto.vision_language.modelling.streams import JoinedStreams, stream_sizes


def joined(sizes: dict[str, int]) -> JoinedStreams:
    counts = {"images": 7, "texts": 11, "pairs": 5}
    streams = {
        name: ShuffledExamples(counts[name], sizes[name], 3, np.ndarray.tolist) for name in sizes
    }
    return JoinedStreams(streams, sizes, lambda pieces: pieces)


def test_pieces_add_up_to_the_batch() -> None:
    sizes = {"images": 4, "texts": 6, "pairs": 3}
    whole = joined(sizes).next(1, [0])[0]
    pieces = joined(sizes).next(3, [0, 1, 2])
    for name, size in sizes.items():
        assert [number for piece in pieces for number in piece[name]] == whole[name]
        assert len(whole[name]) == size
    assert joined(sizes).next(3, [1]) == [pieces[1]]


def test_each_has_epochs_of_its_own() -> None:
    sizes = {"images": 4, "texts": 6, "pairs": 3}
    stream = joined(sizes)
    seen = [stream.next(1, [0])[0] for _ in range(7)]
    for name, count in (("images", 7), ("pairs", 5)):
        numbers = [number for batch in seen for number in batch[name]]
        assert sorted(numbers[:count]) == list(range(count))
        assert sorted(numbers[count : 2 * count]) == list(range(count))
    assert stream.state_dict() == {
        "images": {"position": 28}, "texts": {"position": 42}, "pairs": {"position": 21},
    }  # fmt: skip
    other = joined(sizes)
    other.load_state_dict(stream.state_dict())
    assert other.next(1, [0]) == stream.next(1, [0])


def test_too_many_pieces() -> None:
    with pytest.raises(ValueError, match="a batch has 2 pairs and is cut in 3 pieces"):
        joined({"images": 4, "texts": 4, "pairs": 2}).next(3, [0])


def test_sizes() -> None:
    assert stream_sizes(12, (1, 1, 1)) == {"images": 4, "texts": 4, "pairs": 4}
    assert stream_sizes(12, (1, 2, 3)) == {"images": 2, "texts": 4, "pairs": 6}
    with pytest.raises(ValueError, match=r"a multiple of 6, .*: 12 for"):
        stream_sizes(13, (1, 2, 3))
