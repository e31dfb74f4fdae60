"""Predictors give the same label by label as all at once."""

import pytest
import torch

from magneto.speech.config import TransducerConfig
from magneto.speech.model import build_predictor


@pytest.mark.parametrize("given", [
    {"predictor": "lstm", "predictor_layers": 1}, {"predictor": "lstm"},
    {"predictor": "stateless"}, {"predictor": "stateless", "predictor_context": 3},
], ids=str)  # fmt: skip
def test_step_by_step_as_at_once(given: dict) -> None:
    torch.manual_seed(0)
    config = TransducerConfig(vocab_size=7, predictor_width=6, **given)
    predictor = build_predictor(config).eval()
    labels = torch.randint(1, 7, (3, 5))
    whole = predictor(labels)
    assert whole.shape == (3, 6, 6)
    state = predictor.begin(3, labels.device)
    found = []
    for label in (torch.zeros(3, dtype=torch.long), *labels.T):
        output, state = predictor.step(label, state)
        found.append(output)
    torch.testing.assert_close(torch.stack(found, 1), whole)


def test_a_stateless_one_forgets() -> None:
    torch.manual_seed(0)
    predictor = build_predictor(TransducerConfig(vocab_size=7, predictor="stateless")).eval()
    one, other = predictor(torch.tensor([[1, 2, 3], [4, 2, 3]]))
    torch.testing.assert_close(one[3], other[3])
    assert not torch.allclose(one[2], other[2])
