"""Sizes that are slips of the keyboard."""

from magneto.nn.sizes import wrong_sizes


def test_each_size_that_no_model_has_is_a_line() -> None:
    assert not wrong_sizes({"width": 1 << 24, "layers": 100_000, "heads": 1, "beams": 1_000})
    assert wrong_sizes({"beams": 10**7, "count": 10**7}) == [
        "beams must be at most 1,000, not 10,000,000",
        "count must be at most 10,000, not 10,000,000",
    ]
    assert wrong_sizes({"layers": 0, "encoder_layers": 100_001, "width": 10**9}) == [
        "layers must be 1 or more, not 0",
        "encoder_layers must be at most 100,000, not 100,001",
        "width must be at most 16,777,216, not 1,000,000,000 "
        "(one matrix of such queries needs 4,000,000 TB)",
    ]
