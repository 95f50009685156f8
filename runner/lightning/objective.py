"""A LightningModule's steps as the loop's objective."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from runner.communicator import Communicator
from runner.errors import TrainingError
from runner.lightning import metric_states
from runner.lightning.log import Entry, Log, captured
from runner.lightning.metric_states import Snapshot, restore, states
from runner.lightning.module import arity, defines

FILLER_ROWS = 1  # see MicroBatch: a batch that is not counted is one row


class LightningObjective:
    """training_step returns the mean loss of a batch's rows, validation_step logs what is measured.

    What a step logs is kept here, not in the loop's sums: its names are known only once it has run.
    """

    is_weighted = False
    width = 1

    def __init__(self, model: nn.Module) -> None:
        self._model = self._measured = model
        self._training, self._validation = Log("train"), Log("val")
        self._validates = defines(model, "validation_step")
        names = ["training_step", "validation_step"] if self._validates else ["training_step"]
        self._arity = {name: arity(getattr(model, name)) for name in names}
        self._trained = self._evaluated = 0  # batches since the last report
        self._entries: list[Entry] = []  # of the last training batch, until it is known to count
        self._before: Snapshot = []

    def losses(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The step's loss for each row, [rows]: their sum's gradient is rows × that of the mean."""
        self._discard()
        rows = len(inputs)
        if rows == FILLER_ROWS:
            self._before = states(model)
        returned, self._entries = self._step(model, "training_step", inputs, targets, self._trained)
        self._trained += 1
        loss = loss_of(returned)
        if loss is None:
            raise TrainingError(
                f"training_step returned {described(returned)}: a mean loss, or a dict with 'loss', is needed in "
                "every step (a batch is not skipped: all ranks take it)"
            )
        return loss.expand(rows)

    def weights(self, targets: Tensor) -> Tensor:
        """Ones. The loop asks for them only where a batch counts, so this is where its logs are kept."""
        self._training.add(self._entries)
        self._entries, self._before = [], []
        return torch.ones(len(targets), dtype=torch.float64, device=targets.device)

    def logged(self, communicator: Communicator) -> dict[str, float]:
        self._discard()
        self._trained = 0
        values = self._training.reduce(self._model, communicator)
        values.pop("loss", None)  # the loop's own train/loss is the mean over the same rows
        return {f"train/{name}": value for name, value in values.items()}

    def state_dict(self) -> dict[str, Any]:
        self._discard()
        return {
            "trained": self._trained,
            "log": self._training.state_dict(self._model),
            "metrics": metric_states.state_dict(self._model),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not state:  # the ranks' number has changed: their logs begin anew
            return
        self._trained = state["trained"]
        self._training.load_state_dict(state["log"], self._model)
        metric_states.load_state_dict(self._model, state["metrics"])

    def measure(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        self._measured = model  # may be the moving average, a copy with metrics of its own
        if self._validates:
            returned, entries = self._step(model, "validation_step", inputs, targets, self._evaluated)
        else:
            before = states(model)
            returned, _ = self._step(model, "training_step", inputs, targets, self._evaluated)
            restore(before)
            entries = []
        self._evaluated += 1
        loss = loss_of(returned)
        if loss is not None and not any(self._validation.name(entry.written) == "loss" for entry in entries):
            entries.append(Entry("loss", "mean", loss.detach().double(), len(inputs)))
        self._validation.add(entries)
        return torch.zeros(self.width, dtype=torch.float64)

    def metrics(self, sums: Tensor, communicator: Communicator) -> dict[str, float]:
        self._evaluated = 0
        return self._validation.reduce(self._measured, communicator)

    def _step(
        self, model: nn.Module, name: str, inputs: Tensor, targets: Tensor, index: int
    ) -> tuple[Any, list[Entry]]:
        arguments = ((inputs, targets), index, 0)[: self._arity[name]]
        with captured(model, len(inputs)) as entries:
            returned = getattr(model, name)(*arguments)
        return returned, entries

    def _discard(self) -> None:
        """Forget the last training batch if it did not count."""
        restore(self._before)
        self._entries, self._before = [], []


def loss_of(returned: Any) -> Tensor | None:
    """The scalar loss that a step returned, in float32 at least; None where there is none."""
    loss = returned.get("loss") if isinstance(returned, dict) else returned
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        return None
    return (loss.float() if loss.dtype in (torch.bfloat16, torch.float16) else loss).reshape(())


def described(returned: Any) -> str:
    if isinstance(returned, Tensor):
        return f"a tensor {tuple(returned.shape)}"
    return f"a {type(returned).__name__}" if returned is not None else "None"
