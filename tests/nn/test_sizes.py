"""Sizes that are slips of the keyboard."""

from magneto.nn.sizes import wrong_sizes


def test_each_size_that_no_model_has_is_a_line() -> None:
    assert not wrong_sizes({"width": 1 << 24, "layers": 100_000, "heads": 1})
    assert wrong_sizes({"layers": 0, "encoder_layers": 100_001, "width": 10**9}) == [
        "layers must be 1 or more, not 0",
        "encoder_layers must be at most 100,000, not 100001",
        "width must be at most 16,777,216, not 1000000000 "
        "(one matrix of such queries needs 4,000,000 TB)",
    ]
