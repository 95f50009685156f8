"""The digits perceptron on two Horovod workers, as one writes it by hand: rows, batch, LR and numbers of
`python -m runner model=mlp scaling.num_workers=2`. What the peers of benchmarks/sweep.py train.
"""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

BATCH, HELD_OUT = 32, 0.2


def arrays() -> list[Any]:
    """Inputs [rows, 1, 8, 8] and labels of both splits: training, validation."""
    inputs, labels = load_digits(return_X_y=True)
    inputs = (inputs.reshape(-1, 1, 8, 8) / 16.0).astype("float32")
    order = np.random.default_rng(0).permutation(len(inputs))
    val, rest = np.split(order, [round(len(inputs) * HELD_OUT)])
    return [inputs[rest], labels[rest], inputs[val], labels[val]]


def train(arrays: list[Any], lr: float, hidden: int, epochs: int) -> float:
    """The final validation loss of one training, in a process group that is initialised."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y, x_val, y_val = (torch.from_numpy(array) for array in arrays)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr * hvd.size())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Average)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    size, rank, ranks = BATCH * hvd.size(), hvd.rank(), hvd.size()
    mine = slice(rank * len(x_val) // ranks, (rank + 1) * len(x_val) // ranks)
    loss = float("nan")
    for epoch in range(epochs):
        model.train()
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for start in range(0, len(x), size):
            rows = order[start : start + size]
            part = rows[rank * len(rows) // ranks : (rank + 1) * len(rows) // ranks]
            optimizer.zero_grad()
            losses = functional.cross_entropy(model(x[part]), y[part], reduction="sum")
            (losses * ranks / len(rows)).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            total = functional.cross_entropy(model(x_val[mine]), y_val[mine], reduction="sum").double()
        loss = hvd.allreduce(total, op=hvd.Sum, name="loss").item() / len(x_val)
    return loss
