"""What does not fit is refused in a sentence."""

from typing import Any

import pytest
import torch

from magneto.functional.transducer import joiner_transducer_loss, transducer_loss
from magneto.functional.transducer_inputs import next_labels

GIVEN: dict[str, Any] = {
    "logits": torch.zeros(2, 5, 4, 7),
    "targets": torch.ones(2, 3, dtype=torch.long),
    "logit_lengths": torch.tensor([5, 4]),
    "target_lengths": torch.tensor([3, 0]),
}


@pytest.mark.parametrize(
    "change,message",
    [
        ({"logits": torch.zeros(2, 5, 7)}, r"must be \(batch, time, labels \+ 1, vocabulary\)"),
        ({"logits": torch.zeros(2, 0, 4, 7)}, r"not \(2, 0, 4, 7\)"),
        ({"targets": torch.ones(2, 4, dtype=torch.long)}, r"must be \(batch, labels\), \(2, 3\)"),
        ({"logit_lengths": torch.tensor([5])}, "two lengths for each of the 2 utterances"),
        ({"logit_lengths": torch.tensor([6, 4])}, r"frames must be in \[0, 5\], not \[6, 4\]"),
        ({"target_lengths": torch.tensor([3, -1])}, r"labels must be in \[0, 3\], not \[3, -1\]"),
        ({"targets": torch.full((2, 3), 7)}, r"not the blank 0; \[7\] are not"),
        ({"targets": torch.zeros(2, 3, dtype=torch.long)}, r"\[0\] are not"),
        ({"blank": 7}, r"blank 7 must be in \[0, 7\)"),
        ({"tile": 0}, "tile 0 at least 1"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    assert transducer_loss(**GIVEN).isfinite().all()
    with pytest.raises(ValueError, match=message):
        transducer_loss(**{**GIVEN, **change})


@pytest.mark.parametrize("index,shape", [(0, (2, 5, 5)), (1, (3, 4, 6)), (2, (7, 5)), (2, (7,))])
def test_features_that_do_not_fit_each_other_are_named(index: int, shape: tuple[int]) -> None:
    tensors = [torch.zeros(2, 5, 6), torch.zeros(2, 4, 6), torch.zeros(7, 6)]
    rest = [GIVEN[key] for key in ("targets", "logit_lengths", "target_lengths")]
    assert joiner_transducer_loss(*tensors, None, *rest).isfinite().all()
    tensors[index] = torch.zeros(shape)
    with pytest.raises(ValueError, match="do not fit"):
        joiner_transducer_loss(*tensors, None, *rest)


def test_the_next_label_of_each_position() -> None:
    targets = torch.tensor([[4, 5, 6], [4, -100, 99]])
    found = next_labels(targets, torch.tensor([3, 1]))
    assert found.tolist() == [[4, 5, 6, 0], [4, 0, 0, 0]]
