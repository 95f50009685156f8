"""A user's project in which things go wrong: a model that fails on one rank, a dataset whose ranks disagree."""

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

FOREVER = 1000  # s


class Faulty(nn.Module):
    """A perceptron that fails in its n-th training forward since its process started (`at`), on `rank` or on all.

    `folder` keeps what happened: in `rank-R-PID` the forwards of each process, in `moments` a line of time.time() and
    pid for each fault; it lies in the run's folder. The fault waits until the checkpoint `after` is written. `once`: not
    again in a process that is started later. Nothing happens on the driver, unless it trains itself (`alone`). `by_width`: other kinds for some widths.
    """

    def __init__(
        self,
        in_features,
        out_features,
        width=8,
        kind=None,
        rank=None,
        at=1,
        after=None,
        once=True,
        seconds=0.1,
        folder=None,
        by_width=None,
        alone=False,
    ):
        super().__init__()
        kind = (by_width or {}).get(width, kind)
        # Dropout, so that a resumed training needs each rank's random numbers too.
        self.layers = nn.Sequential(
            nn.Linear(in_features, width), nn.Tanh(), nn.Dropout(0.1), nn.Linear(width, out_features)
        )
        self.kind, self.at, self.after, self.once, self.seconds = kind, at, after, once, seconds
        self.forwards = 0
        is_training = alone and (Path(folder).parent / "rank-0.lock").exists()  # no rehearsal
        mine = os.environ.get("HOROVOD_RANK", "0" if is_training else None)
        self.fails = kind is not None and mine is not None and str(rank) in (mine, "None")
        self.folder = Path(folder) if folder and mine is not None else None
        self.counter = None
        if self.folder:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.counter = os.open(self.folder / f"rank-{mine}-{os.getpid()}", os.O_WRONLY | os.O_CREAT)

    def forward(self, inputs):
        outputs = self.layers(inputs)
        if not (self.training and torch.is_grad_enabled()):
            return outputs
        self.forwards += 1
        if self.counter is not None:
            os.pwrite(self.counter, str(self.forwards).encode(), 0)
        if self.fails and self.forwards == self.at and self.is_first():
            while self.after and not (self.folder.parent / "checkpoints" / self.after).exists():
                time.sleep(0.001)
            happened(self.folder)
            return getattr(self, self.kind)(outputs)
        if self.fails and self.kind == "slow":
            time.sleep(self.seconds)
        return outputs

    def is_first(self):
        return not (self.once and (self.folder / "moments").exists())

    def sigkill(self, outputs):
        os.kill(os.getpid(), signal.SIGKILL)

    def sigstop(self, outputs):
        os.kill(os.getpid(), signal.SIGSTOP)
        return outputs  # whoever ends it may wake it up first

    def kill_writer(self, outputs):
        """SIGKILL as soon as the half of a checkpoint is on the disk: the run's folder is the marker's parent."""
        threading.Thread(target=self.watch_writer, daemon=True).start()
        return outputs

    def watch_writer(self):
        while True:
            if any(self.folder.parent.glob("checkpoints/tmp-step-*/weights.safetensors")):
                happened(self.folder)
                os.kill(os.getpid(), signal.SIGKILL)

    def raises(self, outputs):
        raise ValueError("the sky fell")

    def os_exit(self, outputs):
        os._exit(0)

    def sys_exit(self, outputs):
        sys.exit(0)

    def sleeps(self, outputs):
        time.sleep(FOREVER)

    def spins(self, outputs):
        while True:
            pass

    def holds_gil(self, outputs):
        ctypes.PyDLL(None).sleep(FOREVER)

    def nan_loss(self, outputs):
        return outputs * float("nan")

    def inf_gradient(self, outputs):
        outputs.register_hook(lambda gradient: gradient * float("inf"))
        return outputs

    def slow(self, outputs):
        """From here on each step waits `seconds`."""
        time.sleep(self.seconds)
        return outputs


def quadrants(train_rows=203, val_rows=53, short_rank=None, folder=None, seconds=0.0):
    """Points and the quadrant they lie in. Reading them takes `seconds`: `folder`/reading is there meanwhile.

    On `short_rank` a sampler leaves out the last row, and writes the moment into `folder` as Faulty does.
    """
    if seconds:
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, "reading").touch()
        time.sleep(seconds)
    points = np.random.default_rng(0).standard_normal((train_rows + val_rows, 2)).astype("float32")
    labels = (points[:, 0] > 0) * 2 + (points[:, 1] > 0)
    split = {
        "train": (points[:train_rows], labels[:train_rows]),
        "val": (points[train_rows:], labels[train_rows:]),
    }
    if short_rank is not None:
        split["sampler"] = Sampler(train_rows, short_rank, Path(folder))
    return split


class Sampler:
    """All rows in their order; on one rank, from the second epoch on, one row fewer."""

    def __init__(self, rows, short_rank, folder):
        self.rows, self.short_rank, self.folder = rows, short_rank, folder

    def __call__(self, epoch):
        if epoch == 0 or os.environ.get("HOROVOD_RANK") != str(self.short_rank):
            return range(self.rows)
        happened(self.folder)
        return range(self.rows - 1)


def happened(folder):
    """A line for a fault that happens now."""
    with (folder / "moments").open("a") as file:
        file.write(f"{time.time()} {os.getpid()}\n")
