"""What is written says nothing in between where nobody watches."""

from pathlib import Path

import pytest

transformers = pytest.importorskip("transformers")

from magneto import hf  # noqa: E402
from magneto.data.tokenizer import ByteTokenizer  # noqa: E402
from magneto.hf.export import whole_directory  # noqa: E402
from magneto.language.config import LanguageModelConfig  # noqa: E402
from magneto.language.models import LanguageModel  # noqa: E402


def test_no_progress_bars_without_a_terminal(tmp_path: Path, capfd) -> None:
    model = LanguageModel(
        LanguageModelConfig(width=16, layers=1, heads=2, ffn_width=24, vocab_size=260)
    )
    hf.export_text(model, ByteTokenizer(), tmp_path / "out", 32)
    assert capfd.readouterr().err == ""
    assert transformers.utils.logging.is_progress_bar_enabled()


def test_who_comes_second_is_told_so(tmp_path: Path) -> None:
    """Two exports to one place at once: the first that is done stays, whole."""
    place = tmp_path / "out"
    place.mkdir()
    words = "out was filled by another process meanwhile"
    with pytest.raises(FileExistsError, match=words), whole_directory(place) as second:
        (second / "config.json").write_text("second")
        (place / "config.json").write_text("first")
    assert (place / "config.json").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
