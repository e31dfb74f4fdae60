"""A task in one class: how far diabetes goes in a year, from ten numbers of a patient."""

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
    held_out: int = 92  # rows to validate on
    scale: tuple[tuple[float, ...], ...] | None = None  # means and deviations, told by the rows


class Regressor(nn.Sequential):
    def __init__(self, config):  # (rows, 10) to (rows,): each column is a token
        encoder = nn.Unflatten(1, (10, 1)), nn.Linear(1, config.width), Encoder(config)
        super().__init__(*encoder, nn.Flatten(1), nn.Linear(10 * config.width, 1), nn.Flatten(0))


class Diabetes(Task):
    unit, ModelConfig, DataConfig = "patients", TransformerConfig, Patients

    @cached_property
    def table(self):  # (442, 11): the columns and, last, how far it went
        found = load_diabetes(scaled=False)
        return torch.column_stack([torch.tensor(found.data), torch.tensor(found.target)])

    @cached_property
    def scale(self):  # (2, 11), of the rows that are trained on; a run keeps it
        kept, train = self.data_config.scale, self.table[self.data_config.held_out :]
        return torch.tensor(kept) if kept else torch.stack([train.mean(0), train.std(0)])

    def scaled(self, rows):
        means, deviations = self.scale[:, : rows.shape[1]]
        return ((rows - means) / deviations).float()

    def build_model(self):
        return Regressor(self.model_config)

    def train_stream(self, batch_size, seed):
        rows = self.scaled(self.table[self.data_config.held_out :])
        plan = shuffled(len(rows), batch_size, seed)
        return example_stream(plan, lambda numbers, draws: rows[numbers])

    def validation_batches(self):
        return self.scaled(self.table[: self.data_config.held_out]).split(64)

    def loss(self, model, batch):
        apart = (model(batch[:, :-1]) - batch[:, -1]).float()
        return Loss(apart.square().sum(), torch.ones_like(apart).sum())

    def baseline(self, limit=None):  # to answer the mean, which is 0
        return {"loss": torch.cat(self.validation_batches()[:limit])[:, -1].square().mean().item()}

    def save_assets(self, directory):  # what the data told, by the recipe's fields
        return {"data.scale": self.scale.tolist()}

    def predict(self, model, inputs):  # of rows of a table: a number of each
        names = load_diabetes().feature_names
        rows = torch.tensor([[float(row[name]) for name in names] for row in inputs])
        far = model(self.scaled(rows).to(next(model.parameters()).device)).cpu()
        return (far * self.scale[1, -1] + self.scale[0, -1]).tolist()
