"""One global batch, split in every way over workers and accumulated micro-batches, gives the same weights within 1e-9.

Trained are a few steps in float64, over the short last batch of an epoch and into the next epoch. The reference is one
process without Horovod. What it shows wrong: rows that are padded or dropped, micro-batches that are summed where
they should be averaged, a step that the optimizer takes while it is set up, gradients clipped before their average.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from runner import learner, lightning, schema
from runner.communicator import Communicator, SingleProcess
from runner.errors import ConfigError, TrainingError, refuse
from runner.job import Job, Memory
from runner.ledger import plan_learning_rate, rule_name
from runner.plan import DataFacts
from runner.prepare import Prepared, prepare
from runner.report.console import Screen
from runner.request import Request
from runner.schema import Compression, Experiment, Ingest, Precision
from runner.verbs.proof import Compose, Proof
from runner.verbs.proof_jobs import (
    Open,
    groups,
    in_float64,
    job_of,
    last_state,
    memory_of,
    own_arguments,
    planned,
    proved,
    settled,
    store_of,
)
from runner.worker import train_loop_per_worker

TOLERANCE = 1e-9  # of a weight
STEPS = 5
EPOCH = 3.5  # global batches an epoch, at most: three whole ones and a short one
COLUMNS = ("ingest", "split", "steps", "largest difference", "verdict")
INGESTS = (Ingest.tensors, Ingest.dataloader)
NO_PROOF = (
    "each worker owns the same rows in every epoch, so other numbers of workers have other global batches"
)
NOISE = 1e-18  # of a gradient near 0.01 in float64
GRADIENTS = 0.01
PLAIN_LR = 0.1  # of the plain SGD that sums averaged gradients


class Split(NamedTuple):
    workers: int
    parts: int  # of the global batch: workers × micro-batches
    is_reference: bool = False

    def label(self, batch: int) -> str:
        accumulated = self.parts // self.workers
        label = f"{self.workers} × {batch // self.parts}"
        label += f" × {accumulated} accumulated" if accumulated > 1 else ""
        return label + (", no Horovod" if self.is_reference else "")


SPLITS = (Split(1, 1, True), Split(1, 1), Split(1, 4), Split(2, 2), Split(2, 4), Split(4, 4))


def prove(arguments: Sequence[str], compose: Compose, screen: Screen, opened: Open | None = None) -> Proof:
    """Raises ConfigError for an experiment whose weights depend on the split by their nature."""
    own, overrides = own_arguments(arguments, {"steps": STEPS})
    request = proved("equivalence", compose, overrides)
    check(request.experiment)
    batch, base = sizes_of(request.experiment)
    experiment = one_batch(request.experiment, batch, base, own["steps"])
    subjects = {ingest: subject(request, experiment, ingest) for ingest in INGESTS}
    first = subjects[INGESTS[0]]
    check_model(learner.construct(first.experiment, first.plan, first.data.facts), request.experiment)
    notes = [note_of_batch(request.experiment, batch)]
    if amplifies_rounding(first):
        notes.append(note_of_plain_sgd(first))
        subjects = {ingest: with_plain_sgd(each) for ingest, each in subjects.items()}
    screen.line(f"prove equivalence: {len(INGESTS) * len(SPLITS)} trainings, in {request.run_dir}")
    rows: list[tuple[str, ...]] = []
    holds = True
    for row, is_equal in trainings(subjects, batch, request, opened or groups(request)):
        rows.append(row)
        holds &= is_equal
        screen.line(f"{row[0]}, {row[1]}: {row[-1]}")
    order = [ingest.value for ingest in INGESTS]
    rows.sort(key=lambda row: order.index(row[0]))
    rows.append(("ray_data", "no such proof", "", "", "not applicable"))
    notes.append(f"ray_data: {NO_PROOF}; prove determinism and prove resume hold for it")
    title = f"equivalence: weights within {TOLERANCE:g}, float64"
    return Proof(title, COLUMNS, rows, holds, request.run_dir, store_of(request), notes)


def trainings(
    subjects: Mapping[Ingest, Prepared], batch: int, request: Request, opened: Open
) -> Iterator[tuple[tuple[str, ...], bool]]:
    """A row of the table a training, and whether it is as it should be; ends with the first that fails."""
    reference: dict[Ingest, dict[str, Tensor]] = {}
    for size, splits in groupby(SPLITS, lambda split: split.workers):
        with opened(size) as workers:
            for split, (ingest, prepared) in product(splits, subjects.items()):
                sizes = {"batch_size": batch // split.parts, "accumulation_steps": split.parts // size}
                sized = planned(prepared, prepared.data.facts, size, **sizes)
                label = split.label(batch)
                name = label.replace(" × ", "x").replace(",", "").replace(" ", "-")
                folder = request.run_dir / f"{ingest.value}-{name}"
                job, memory = job_of(sized, folder, request.import_roots), memory_of(sized)
                start = (ingest.value, label, str(sized.plan.total_steps))
                try:
                    workers.run(_alone, job, memory) if split.is_reference else workers.train(job, memory)
                except TrainingError as error:
                    yield (*start, "", f"FAILED: {error}"), False
                    return
                found = weights_of(last_state(folder))
                if split.is_reference:
                    reference[ingest] = found
                    yield (*start, "", "reference"), True
                    continue
                far = difference(found, reference[ingest])
                is_equal = far <= TOLERANCE  # not so for NaN
                yield (*start, f"{far:.1e}", "equal" if is_equal else "NOT equal"), is_equal


def weights_of(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Those that are evaluated, and where these are a moving average the model's own too."""
    return {**state["weights"], **{f"own {name}": weight for name, weight in state.get("model", {}).items()}}


def difference(found: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> float:
    """The largest of all weights' differences; NaN where one is."""
    distances = [(found[name].double() - weight.double()).abs().max() for name, weight in reference.items()]
    return float(torch.stack(distances).max())


def check(experiment: Experiment) -> None:
    """Raises ConfigError for settings that round, or have no equal elsewhere."""
    if plan_learning_rate(experiment).is_adaptive:
        raise refuse(
            "lr_scaling",
            rule_name(experiment),
            "its LR depends on how the batch is split",
            "lr_scaling=linear",
        )
    precision, compression = experiment.trainer.precision, experiment.horovod.compression
    if precision in (Precision.bf16, Precision.fp16):
        raise refuse(
            "trainer.precision",
            precision.value,
            "rounds each worker's part of the batch, so that weights differ from split to split",
            "trainer.precision=float64",
        )
    if compression is not Compression.none:
        raise refuse(
            "horovod.compression",
            compression.value,
            "rounds each worker's gradient",
            "horovod.compression=none",
        )
    if experiment.dataset.ingest is Ingest.ray_data:
        raise refuse("dataset.ingest", "ray_data", NO_PROOF, "dataset.ingest=tensors")


def check_model(model: nn.Module, experiment: Experiment) -> None:
    """Raises ConfigError where a row's output depends on chance or on the rows beside it."""
    target = experiment.model.target
    for name, module in model.named_modules():
        where = f"model={target['_target_']}: {name} is a {type(module).__name__}"
        if getattr(module, "track_running_stats", False) or isinstance(
            module, nn.modules.batchnorm._BatchNorm
        ):
            raise ConfigError(
                f"{where}, whose statistics are those of one worker's rows: weights differ from split to split; "
                + (
                    "type model.norm=group"
                    if "norm" in target
                    else "give it a GroupNorm or LayerNorm instead"
                )
            )
        if drops(module):
            instead = "; type model.dropout=0" if "dropout" in target else ""
            raise ConfigError(f"{where}, which draws at random on each worker{instead}")


def drops(module: nn.Module) -> bool:
    """Whether it is a dropout of torch's, or has one (recurrent layers, attention), that is switched on."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    share = getattr(module, "dropout", 0.0)
    return isinstance(share, float | int) and share > 0


def sizes_of(experiment: Experiment) -> tuple[int, int]:
    """(global batch, to a multiple of 4; base batch). The second is the experiment's, so that all splits have one LR."""
    trainer = experiment.trainer
    batch = experiment.scaling.num_workers * trainer.batch_size * trainer.accumulation_steps
    return max(4, round(batch / 4) * 4), experiment.lr_scaling.base_batch_size or trainer.batch_size


def note_of_batch(experiment: Experiment, batch: int) -> str:
    trainer, workers = experiment.trainer, experiment.scaling.num_workers
    own = workers * trainer.batch_size * trainer.accumulation_steps
    rounded = "" if own == batch else f" (the experiment's {own}, to a multiple of 4)"
    return f"global batch {batch}{rounded}"


def one_batch(experiment: Experiment, batch: int, base: int, steps: int) -> Experiment:
    """The experiment on one worker, for some steps."""
    changed = in_float64(
        settled(experiment, batch_size=batch, accumulation_steps=1, max_steps=steps, limit_batches=None)
    )
    return replace(
        changed,
        scaling=replace(changed.scaling, num_workers=1),
        lr_scaling=replace(changed.lr_scaling, base_batch_size=base),
    )


def subject(request: Request, experiment: Experiment, ingest: Ingest) -> Prepared:
    """The experiment with this ingest, on the first rows: an epoch is three whole batches and a short one."""
    changed = replace(experiment, dataset=replace(experiment.dataset, ingest=ingest))
    prepared = prepare(replace(request, experiment=changed))
    facts = first_rows(prepared.data.facts, prepared.plan.global_batch_size, changed.dataset.drop_last)
    if prepared.data.sampler is not None:  # it gives as many rows as it gives
        facts = replace(facts, train_rows=prepared.data.facts.train_rows)
    return planned(prepared, facts, 1)


def first_rows(facts: DataFacts, batch: int, drop_last: bool) -> DataFacts:
    """At most 3.5 batches of training rows, not a multiple of the batch; at most as many validation rows."""
    most = int(EPOCH * batch) + 1
    rows = min(facts.train_rows, most)
    if rows % batch == 0 and rows > 1 and not drop_last:
        rows -= 1
    return replace(facts, train_rows=rows, val_rows=min(facts.val_rows, most))


def amplifies_rounding(prepared: Prepared) -> bool:
    """Whether the optimizer's first step moves some weight by more than the tolerance for a gradient that is nothing but
    rounding noise, as one that follows the sign does."""
    experiment, plan = prepared.experiment, prepared.plan
    ends = []
    for noise in (NOISE, -NOISE):
        torch.manual_seed(experiment.seed)
        built = learner.build_learner(
            experiment, plan, prepared.data.facts, SingleProcess(), torch.device("cpu"), prepared.initial
        )
        torch.manual_seed(experiment.seed)
        for parameter in built.model.parameters():
            gradient = GRADIENTS * torch.randn(parameter.shape, dtype=parameter.dtype)
            gradient.view(-1)[::2] = noise
            parameter.grad = gradient if parameter.requires_grad else None
        built.optimizer.step()
        ends.append({name: weight.detach().clone() for name, weight in built.model.named_parameters()})
    return not difference(*ends) <= TOLERANCE


def note_of_plain_sgd(prepared: Prepared) -> str:
    name = str(prepared.experiment.optimizer.target["_target_"]).rpartition(".")[2]
    return (
        f"{name} turns rounding noise into steps, so its weights cannot be compared: compared are the averaged "
        f"gradients, summed by plain SGD in its place (lr {PLAIN_LR:g})"
    )


def with_plain_sgd(prepared: Prepared) -> Prepared:
    """Its weights are the first ones less the sum of the averaged gradients."""
    experiment = prepared.experiment
    if lightning.is_module(learner.construct(experiment, prepared.plan, prepared.data.facts)):
        raise ConfigError(
            f"model={experiment.model.target['_target_']}: its own optimizer turns rounding noise into steps, so weights "
            "of different splits cannot be compared; let configure_optimizers give torch.optim.SGD for this proof"
        )
    decay = experiment.optimizer.target.get("weight_decay", 0.0)
    plain = schema.Optimizer(lr=PLAIN_LR, target={"_target_": "torch.optim.SGD", "weight_decay": decay})
    unscaled = replace(experiment.lr_scaling, target={"_target_": "runner.lr_scaling.none"})
    changed = replace(prepared, experiment=replace(experiment, optimizer=plain, lr_scaling=unscaled))
    return planned(changed, changed.data.facts, 1)


def _alone(job: Job, memory: Memory, shards: Mapping[str, Any], communicator: Communicator) -> None:
    """Without Horovod, so that nothing of it can be wrong in the reference too."""
    reports: list[dict[str, Any]] = []  # without a reader: what is compared is in the checkpoint
    train_loop_per_worker(job, memory, shards, SingleProcess, reports.append, 0)
