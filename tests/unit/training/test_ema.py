"""The average of the weights."""

import torch

from magneto.training.optimizer import WeightAverage


def test_closed_form_and_exchange() -> None:
    model = torch.nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.0)
        average = WeightAverage(model, 0.9)
        model.weight.fill_(1.0)
    for _ in range(5):
        average.update()
    expected = torch.full((2, 2), 1 - 0.9**5)
    with average.in_place():
        assert torch.allclose(model.weight, expected)
    assert torch.equal(model.weight, torch.ones(2, 2))
    assert torch.allclose(average.average[0], expected)
    average.reset()
    assert torch.equal(average.average[0], torch.ones(2, 2))
