"""How ranks talk: over Horovod, or not at all in a single process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from runner.schema import Compression, Horovod


class Communicator(Protocol):
    """Every method but `close` is collective: all ranks call it, in the same order."""

    rank: int
    size: int
    local_rank: int

    def allreduce_mean(self, tensor: Tensor) -> Tensor:
        """The mean over ranks; same shape on every rank."""

    def allgather(self, tensor: Tensor) -> Tensor:
        """The ranks' tensors stacked in rank order: [size, *tensor.shape]."""

    def broadcast(self, value: Any) -> Any:
        """Rank 0's picklable value."""

    def broadcast_model(self, model: nn.Module) -> None:
        """Rank 0's parameters and buffers, in place."""

    def distribute(self, optimizer: Optimizer, model: nn.Module, accumulation_steps: int) -> Optimizer:
        """An optimizer whose step averages the gradients of all ranks; micro-batch gradients are summed."""

    def averaged(self, optimizer: Optimizer) -> AbstractContextManager[None]:
        """Inside it the gradients are averaged over the ranks, and `optimizer.step()` takes them as they then are."""

    def close(self) -> None:
        """End the group; no collective after it."""


class SingleProcess:
    """One rank, no communication."""

    rank, size, local_rank = 0, 1, 0

    def allreduce_mean(self, tensor: Tensor) -> Tensor:
        return tensor

    def allgather(self, tensor: Tensor) -> Tensor:
        return tensor.unsqueeze(0)

    def broadcast(self, value: Any) -> Any:
        return value

    def broadcast_model(self, model: nn.Module) -> None:
        pass

    def distribute(self, optimizer: Optimizer, model: nn.Module, accumulation_steps: int) -> Optimizer:
        return optimizer

    def averaged(self, optimizer: Optimizer) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        pass


class HorovodCommunicator:
    """hvd.init'ed ranks. HOROVOD_* settings are read at init, so they are set here, just before."""

    def __init__(self, settings: Horovod, deterministic: bool, timeline: Path | None = None) -> None:
        os.environ.update(environment(settings, deterministic))
        if timeline is not None:  # rank 0 alone writes it
            timeline.parent.mkdir(parents=True, exist_ok=True)
            os.environ["HOROVOD_TIMELINE"] = str(timeline)
        import horovod.torch as hvd

        hvd.init()
        self._hvd, self._settings = hvd, settings
        self.rank: int = hvd.rank()
        self.size: int = hvd.size()
        self.local_rank: int = hvd.local_rank()

    def allreduce_mean(self, tensor: Tensor) -> Tensor:
        mean: Tensor = self._hvd.allreduce(tensor, op=self._hvd.Average)
        return mean

    def allgather(self, tensor: Tensor) -> Tensor:
        gathered: Tensor = self._hvd.allgather(tensor.unsqueeze(0))
        return gathered

    def broadcast(self, value: Any) -> Any:
        return self._hvd.broadcast_object(value, root_rank=0)

    def broadcast_model(self, model: nn.Module) -> None:
        self._hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    def distribute(self, optimizer: Optimizer, model: nn.Module, accumulation_steps: int) -> Optimizer:
        hvd, settings = self._hvd, self._settings
        fp16 = settings.compression is Compression.fp16
        wrapped: Optimizer = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=[(name, p) for name, p in model.named_parameters() if p.requires_grad],
            op=hvd.Average,
            backward_passes_per_step=accumulation_steps,
            compression=hvd.Compression.fp16 if fp16 else hvd.Compression.none,
            gradient_predivide_factor=settings.gradient_predivide_factor,
            groups=settings.groups,
            sparse_as_dense=settings.sparse_as_dense,
        )
        # Not hvd.broadcast_optimizer_state: on a fresh optimizer it takes a step with zero gradients.
        wrapped.load_state_dict(self.broadcast(wrapped.state_dict()))
        return wrapped

    @contextmanager
    def averaged(self, optimizer: Optimizer) -> Iterator[None]:
        optimizer.synchronize()  # type: ignore[attr-defined]  # Horovod's wrapper
        with optimizer.skip_synchronize():  # type: ignore[attr-defined]
            yield

    def close(self) -> None:
        self._hvd.shutdown()


def environment(settings: Horovod, deterministic: bool) -> dict[str, str]:
    """HOROVOD_* variables. With 3 or more ranks only unfused tensors are reduced in the same order each time."""
    fusion = 0 if deterministic else int(settings.fusion_threshold_mb * 2**20)
    return {
        "HOROVOD_FUSION_THRESHOLD": str(fusion),
        "HOROVOD_CYCLE_TIME": str(settings.cycle_time_ms),
        "HOROVOD_CACHE_CAPACITY": str(settings.cache_capacity),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(settings.gloo_timeout_s),
        "HOROVOD_STALL_CHECK_TIME_SECONDS": str(settings.stall_warning_s),
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(settings.stall_shutdown_s),
        "HOROVOD_LOG_LEVEL": "warning",
    }


def device(communicator: Communicator, use_gpu: bool) -> torch.device:
    """The rank's device: the GPU of its local rank, which becomes the process's current one."""
    if not use_gpu:
        return torch.device("cpu")
    # Ray shows a worker its own GPU only, or (shared visibility) all GPUs of the node.
    index = communicator.local_rank % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
