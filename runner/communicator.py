"""How ranks talk: over Horovod, or not at all in a single process."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from runner.errors import TrainingError
from runner.schema import Compression, Horovod

# Horovod's errors of a collective, and how those begin that are about the call itself.
LOST = ("HorovodInternalError", "HostsUpdatedInterrupt")
DISAGREE = ("Mismatched", "Requested to")
SIZE_BYTES = 8  # of a length before the bytes


class LostPeerError(TrainingError):
    """A collective failed because another rank ended or no longer answers: a consequence, never the cause."""


class Communicator(Protocol):
    """Every method but `close` is collective: all ranks call it, in the same order.

    Where another rank is gone they raise LostPeerError; `backward` may raise Horovod's own (see `lost_peer`).
    """

    rank: int
    size: int
    local_rank: int
    waiting: str | None  # what the other ranks are waited for with; None while this one computes
    waited: float  # seconds, so far

    def allreduce_mean(self, tensor: Tensor) -> Tensor:
        """The mean over ranks; same shape on every rank."""

    def allgather(self, tensor: Tensor) -> Tensor:
        """The ranks' tensors stacked in rank order: [size, *tensor.shape]."""

    def allgather_bytes(self, content: bytes) -> list[bytes]:
        """The ranks' contents in rank order; each may be of another length."""

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
    waiting: str | None = None
    waited = 0.0

    def allreduce_mean(self, tensor: Tensor) -> Tensor:
        return tensor

    def allgather(self, tensor: Tensor) -> Tensor:
        return tensor.unsqueeze(0)

    def allgather_bytes(self, content: bytes) -> list[bytes]:
        return [content]

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

    def __init__(
        self,
        settings: Horovod,
        deterministic: bool,
        timeline: Path | None = None,
        without: Collection[str] = (),
    ) -> None:
        """`without` these variables of the environment."""
        os.environ.update(environment(settings, deterministic))
        for name in without:
            del os.environ[name]
        if timeline is not None:  # rank 0 alone writes it
            timeline.parent.mkdir(parents=True, exist_ok=True)
            os.environ["HOROVOD_TIMELINE"] = str(timeline)
        import horovod.torch as hvd

        hvd.init()
        self._hvd, self._settings = hvd, settings
        self.waiting: str | None = None
        self.waited = 0.0
        self.rank: int = hvd.rank()
        self.size: int = hvd.size()
        self.local_rank: int = hvd.local_rank()

    def allreduce_mean(self, tensor: Tensor) -> Tensor:
        with self._waits("allreduce"):
            mean: Tensor = self._hvd.allreduce(tensor, name=_name(tensor), op=self._hvd.Average)
        return mean

    def allgather(self, tensor: Tensor) -> Tensor:
        with self._waits("allgather"):
            gathered: Tensor = self._hvd.allgather(tensor.unsqueeze(0), name=_name(tensor))
        return gathered

    def allgather_bytes(self, content: bytes) -> list[bytes]:
        # One collective, not two: what each rank gives says how long it is.
        given = len(content).to_bytes(SIZE_BYTES, "little") + content
        with self._waits("allgather"):
            tensor = torch.frombuffer(bytearray(given), dtype=torch.uint8)
            together: bytes = self._hvd.allgather(tensor, name="bytes").numpy().tobytes()
        contents = []
        while together:
            end = SIZE_BYTES + int.from_bytes(together[:SIZE_BYTES], "little")
            contents.append(together[SIZE_BYTES:end])
            together = together[end:]
        return contents

    def broadcast(self, value: Any) -> Any:
        with self._waits("broadcast"):
            # By default it is named after the value's type, which may differ from rank to rank: they would wait for ever.
            return self._hvd.broadcast_object(value, root_rank=0, name="value")

    def broadcast_model(self, model: nn.Module) -> None:
        with self._waits("broadcast of the model"):
            self._hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    def distribute(self, optimizer: Optimizer, model: nn.Module, accumulation_steps: int) -> Optimizer:
        hvd, settings = self._hvd, self._settings
        fp16 = settings.compression is Compression.fp16
        with self._waits("broadcast of the gradients' order"):  # if they are grouped
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
        with self._waits("gradients"):
            optimizer.synchronize()  # type: ignore[attr-defined]  # Horovod's wrapper
        with optimizer.skip_synchronize():  # type: ignore[attr-defined]
            yield

    def close(self) -> None:
        self._hvd.shutdown()

    @contextmanager
    def _waits(self, collective: str) -> Iterator[None]:
        began, self.waiting = time.monotonic(), collective
        try:
            yield
        except RuntimeError as error:
            if (lost := lost_peer(error)) is not None:
                raise lost from error
            raise
        finally:
            self.waiting = None
            self.waited += time.monotonic() - began


def lost_peer(error: BaseException) -> TrainingError | None:
    """The error that a rank ends with when a collective failed, or None where `error` is of another kind.

    Known by name, because a gradient's hook raises Horovod's own error inside `backward`, where no method of a
    communicator could translate it, and because the driver does not import Horovod.
    """
    if isinstance(error, LostPeerError):
        return error
    if type(error).__name__ not in LOST:
        return None
    line = next(iter(str(error).strip().splitlines()), "no reason given").partition(". ")[0]
    if line.startswith(DISAGREE):
        return TrainingError(f"the ranks called different collectives: {line}")
    return LostPeerError(f"a collective failed: another rank ended or stopped answering ({line})")


def _name(tensor: Tensor) -> str:
    """By default Horovod numbers its collectives, and its cache of them overflows. Without the shape, so that ranks whose
    shapes differ meet, and get an error."""
    return f"{tensor.dtype} {tensor.dim()}d"


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
