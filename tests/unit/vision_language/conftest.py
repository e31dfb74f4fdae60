"""Fewer built-in scenes for the tests of a file."""

from collections.abc import Iterator

import pytest

from magneto.vision_language import scenes


@pytest.fixture(scope="module")
def few_pairs() -> Iterator[None]:
    """A fortieth of the pairs of scene and caption; images alone and texts alone, too."""
    with pytest.MonkeyPatch.context() as patch:
        for split, count in scenes.PAIRS.items():
            patch.setitem(scenes.PAIRS, split, count // 40)
        yield
