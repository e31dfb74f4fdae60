"""Example of a user-defined task: regression on scikit-learn's diabetes table."""

from functools import cached_property

import torch
from sklearn.datasets import load_diabetes
from torch import nn

from magneto import Encoder, TransformerConfig
from magneto.data.stream import example_stream, shuffled
from magneto.fields import configuration
from magneto.training.task import Loss, Task


@configuration
class Patients:
    held_out: int = 92  # rows for validation
    saved_statistics: tuple[tuple[float, ...], ...] | None = None  # of a run, see `save_assets`


class Regressor(nn.Sequential):
    def __init__(self, config):  # (rows, 10) to (rows,): each column is a token
        encoder = nn.Unflatten(1, (10, 1)), nn.Linear(1, config.width), Encoder(config)
        super().__init__(*encoder, nn.Flatten(1), nn.Linear(10 * config.width, 1), nn.Flatten(0))


class Diabetes(Task):
    ModelConfig, DataConfig = TransformerConfig, Patients  # required
    unit = "patients"  # optional

    @cached_property
    def table(self):  # (442, 11): the columns and, last, the progression
        found = load_diabetes(scaled=False)
        return torch.column_stack([torch.tensor(found.data), torch.tensor(found.target)])

    @cached_property
    def statistics(self):  # (2, 11): means and deviations of the training rows
        kept, train = self.data_config.saved_statistics, self.table[self.data_config.held_out :]
        return torch.tensor(kept) if kept else torch.stack([train.mean(0), train.std(0)])

    def standardised(self, rows):
        means, deviations = self.statistics[:, : rows.shape[1]]
        return ((rows - means) / deviations).float()

    def build_model(self):  # required
        return Regressor(self.model_config)

    def train_stream(self, batch_size, seed):  # required
        rows = self.standardised(self.table[self.data_config.held_out :])
        plan = shuffled(len(rows), batch_size, seed)
        return example_stream(plan, lambda numbers, draws: rows[numbers])

    def validation_batches(self):  # required
        return self.standardised(self.table[: self.data_config.held_out]).split(64)

    def loss(self, model, batch):  # required
        errors = (model(batch[:, :-1]) - batch[:, -1]).float()
        return Loss(errors.square().sum(), torch.ones_like(errors).sum())

    def baseline(self, limit=None):  # optional: predicts the mean, which is 0
        return {"loss": torch.cat(self.validation_batches()[:limit])[:, -1].square().mean().item()}

    def save_assets(self, directory):  # optional: a run is opened with this field in `data_config`
        return {"data.saved_statistics": self.statistics.tolist()}

    def predict(self, model, inputs):  # optional: the progression of each row of a table
        names = load_diabetes().feature_names
        rows = torch.tensor([[float(row[name]) for name in names] for row in inputs])
        predicted = model(self.standardised(rows).to(next(model.parameters()).device)).cpu()
        return (predicted * self.statistics[1, -1] + self.statistics[0, -1]).tolist()
