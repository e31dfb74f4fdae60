"""How a batch is shared among images, texts and pairs."""

import pytest

from magneto.vision_language.modelling.streams import stream_sizes


def test_sizes() -> None:
    assert stream_sizes(12, (1, 1, 1)) == {"images": 4, "texts": 4, "pairs": 4}
    assert stream_sizes(12, (1, 2, 3)) == {"images": 2, "texts": 4, "pairs": 6}
    with pytest.raises(ValueError, match=r"a multiple of 6, .*: 12 for"):
        stream_sizes(13, (1, 2, 3))
