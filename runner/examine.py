"""What the trained model does on the validation rows, in numbers small enough to report and to draw."""

from __future__ import annotations

import codecs
import json
import math
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.communicator import Communicator
from runner.ingest.batches import Ingest
from runner.ingest.sampler import part
from runner.plan import DataFacts
from runner.schema import Task

Json = dict[str, Any]
Sample = tuple[float, Json]  # those with the lowest keys are kept
SAMPLES = 16
TEXTS = 8
TOKENS = 200  # of a prompt or a continuation
CLASSES = 100  # the largest confusion matrix; also the most pairs or labels listed
POINTS = 2000  # of a regression, over all its outputs
OUTPUTS = 4  # of a regression that are shown
NUMBERS = 64  # of an input row that is shown as such
SIDE = 40  # pixels; larger images are reduced, so that all samples together stay near 100 KB
BYTES = 256  # tokens of a byte-level language model


@torch.no_grad()
def examine(
    model: nn.Module,
    task: Task,
    ingest: Ingest,
    data: DataFacts,
    communicator: Communicator,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> Json:
    """One pass of `model`, in evaluation mode, over the validation rows of all ranks. Collective; the same on each.

    The result has less than 200 KB as JSON: {"task"} and, where None is a number that is not finite,

    - classification: "samples" [{"target", "prediction", "probability", "wrong", "image" or "row"}], wrong ones first,
      those before the others whose target the model held least probable; with up to 100 classes "classes" (names) and "confusion" [target][prediction] counts,
      otherwise "confused", the 100 most frequent mistakes [[target, prediction, count]]
    - multilabel: "labels" [[name, true positives, false positives, false negatives, true negatives]], of more than
      100 labels the most frequent
    - regression, the first 4 outputs: "points" [[[target, prediction] of each output] of each row], at most 2000
      pairs of rows evenly spaced; "samples" [{"target", "prediction", "image" or "row"}], the largest errors first
    - language_modeling, the first rows: "samples" [{"prompt": text, "truth": [pieces], "prediction": [pieces],
      "right": [bools]}], after the first half of a row the tokens that follow, and the likeliest ones, each given the
      true tokens before it

    An "image" is {"shape": [height, width, channels], "bytes": base64}. A model whose outputs are not those of the
    task, or that fails, gives {} and a printed line.
    """
    findings = _FINDINGS[task](data)
    first_rows = TEXTS if task is Task.language_modeling else None  # nothing is counted there
    rows, failure = 0, None
    try:
        for columns in ingest.evaluation():
            inputs, targets = (column[:first_rows] for column in columns)
            with autocast():
                outputs = model(inputs)
            _check(outputs, targets, task, data)
            outputs = outputs.to("cpu", torch.promote_types(outputs.dtype, torch.float32))
            findings.add(inputs.cpu(), outputs, targets.cpu())
            rows += len(inputs)
            if first_rows and rows >= first_rows:
                break
    except Exception as error:  # noqa: BLE001 (a user's model may raise anything, and the training is done)
        failure = f"{type(error).__name__}: {error}"
    # From here on a rank that failed takes part as the others do, or they would wait for it.
    counts = communicator.allgather(torch.tensor(rows)).tolist()
    share = findings.found(sum(counts[: communicator.rank]), sum(counts)) if failure is None else {}
    shares = _exchange({**share, "failure": failure}, communicator)
    failures = [share["failure"] for share in shares if share["failure"] is not None]
    if failures:
        print(f"plots: the predictions are not drawn: {failures[0]}")
        return {}
    return {"task": task.value, **findings.merge(shares)}


def _check(outputs: Any, targets: Tensor, task: Task, data: DataFacts) -> None:
    if not isinstance(outputs, Tensor):
        raise TypeError(f"the model returned a {type(outputs).__name__}, not a tensor")
    labelled = task in (Task.classification, Task.language_modeling)
    expected = (*targets.shape, data.out_features) if labelled else tuple(targets.shape)
    if tuple(outputs.shape) != expected:
        raise ValueError(f"the model returned {tuple(outputs.shape)} where {task.value} needs {expected}")


def _exchange(value: Json, communicator: Communicator) -> list[Json]:
    """All ranks' values in rank order. As bytes, because gathered tensors must have one shape."""
    content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    lengths = communicator.allgather(torch.tensor(len(content))).tolist()
    gathered = communicator.allgather(functional.pad(content, (0, max(lengths) - len(content))))
    return [json.loads(bytes(row[:length].numpy())) for row, length in zip(gathered, lengths, strict=True)]


class Findings(Protocol):
    """What one rank collects. Nothing here communicates."""

    def __init__(self, data: DataFacts) -> None: ...

    def add(self, inputs: Tensor, outputs: Tensor, targets: Tensor) -> None:
        """Rows of this rank, in their order; on the CPU."""

    def found(self, first: int, total: int) -> Json:
        """This rank's share; its first row is row `first` of the `total` of all ranks."""

    def merge(self, shares: Sequence[Json]) -> Json:
        """The result, from all ranks' shares in rank order."""


class _Classification:
    def __init__(self, data: DataFacts) -> None:
        self._data = data
        self._counts: Counter[int] = Counter()  # target × classes + prediction: rows
        self._worst: list[Sample] = []

    def add(self, inputs: Tensor, outputs: Tensor, targets: Tensor) -> None:
        probabilities, predictions = outputs.softmax(dim=1), outputs.argmax(dim=1)
        codes, counts = (targets * self._data.out_features + predictions).unique(return_counts=True)
        self._counts.update(dict(zip(codes.tolist(), counts.tolist(), strict=True)))
        right = predictions == targets

        def describe(row: int) -> Json:
            return {
                "target": _name(self._data, int(targets[row])),
                "prediction": _name(self._data, int(predictions[row])),
                "probability": _number(probabilities[row, predictions[row]]),
                "wrong": not right[row],
                **_shown(inputs[row]),
            }

        # Wrong rows lie below 1, right ones above; a NaN is as wrong as can be.
        keys = (probabilities.gather(1, targets[:, None])[:, 0] + right).nan_to_num(0.0)
        self._worst = _worst(self._worst, keys, describe)

    def found(self, first: int, total: int) -> Json:
        return {"counts": list(self._counts.items()), "worst": self._worst}

    def merge(self, shares: Sequence[Json]) -> Json:
        counts: Counter[int] = Counter()
        for share in shares:
            counts.update(dict(share["counts"]))
        samples, labels = _worst_of(shares), range(self._data.out_features)
        if len(labels) <= CLASSES:
            confusion = [[counts[target * len(labels) + said] for said in labels] for target in labels]
            names = [_name(self._data, label) for label in labels]
            return {"classes": names, "confusion": confusion, "samples": samples}
        pairs = [(divmod(code, len(labels)), count) for code, count in sorted(counts.items())]
        mistakes = sorted((pair for pair in pairs if pair[0][0] != pair[0][1]), key=lambda pair: -pair[1])
        confused = [[*(_name(self._data, label) for label in pair), n] for pair, n in mistakes[:CLASSES]]
        return {"confused": confused, "samples": samples}


class _Multilabel:
    def __init__(self, data: DataFacts) -> None:
        self._data = data
        self._counts = torch.zeros(data.out_features, 4, dtype=torch.int64)

    def add(self, inputs: Tensor, outputs: Tensor, targets: Tensor) -> None:
        said, true = outputs > 0, targets > 0.5
        kinds = (said & true, said & ~true, ~said & true, ~said & ~true)
        self._counts += torch.stack([kind.sum(dim=0) for kind in kinds], dim=1)

    def found(self, first: int, total: int) -> Json:
        return {"counts": self._counts.tolist()}

    def merge(self, shares: Sequence[Json]) -> Json:
        counts = torch.tensor([share["counts"] for share in shares]).sum(dim=0)
        true = counts[:, 0] + counts[:, 2]
        frequent = true.argsort(descending=True, stable=True)[:CLASSES].sort().values.tolist()
        return {"labels": [[_name(self._data, label), *counts[label].tolist()] for label in frequent]}


class _Regression:
    def __init__(self, data: DataFacts) -> None:
        self._outputs = min(data.out_features, OUTPUTS)
        self._pairs: list[Tensor] = []  # [rows, outputs, 2]
        self._worst: list[Sample] = []

    def add(self, inputs: Tensor, outputs: Tensor, targets: Tensor) -> None:
        pairs = torch.stack([column.flatten(1)[:, : self._outputs] for column in (targets, outputs)], dim=2)
        self._pairs.append(pairs)

        def describe(row: int) -> Json:
            target, prediction = ([_number(value) for value in values] for values in pairs[row].T)
            return {"target": target, "prediction": prediction, **_shown(inputs[row])}

        errors = (outputs - targets).abs().flatten(1).mean(dim=1)
        self._worst = _worst(self._worst, -errors.nan_to_num(torch.inf), describe)

    def found(self, first: int, total: int) -> Json:
        chosen = min(total, POINTS // self._outputs)
        even = [part(total, chosen, index).start - first for index in range(chosen)]
        mine = range(sum(map(len, self._pairs)))
        rows = [row for row in even if row in mine]
        points = torch.cat(self._pairs)[rows].tolist() if rows else []
        numbers = [[[_number(value) for value in pair] for pair in row] for row in points]
        return {"points": numbers, "worst": self._worst}

    def merge(self, shares: Sequence[Json]) -> Json:
        return {"points": _chained(shares, "points"), "samples": _worst_of(shares)}


class _LanguageModeling:
    def __init__(self, data: DataFacts) -> None:
        self._data = data
        self._samples: list[Json] = []

    def add(self, inputs: Tensor, outputs: Tensor, targets: Tensor) -> None:
        half = max(1, inputs.shape[1] // 2)
        prompts, truths = inputs[:, :half], targets[:, half - 1 :]
        predictions = outputs[:, half - 1 :].argmax(dim=2)
        for prompt, truth, prediction in zip(prompts, truths, predictions, strict=True):
            counted = truth >= 0  # the end of a text is filled up with −100
            if counted.any():
                shown = (prompt[-TOKENS:], truth[counted][:TOKENS], prediction[counted][:TOKENS])
                before, true, said = (self._pieces(tokens) for tokens in shown)
                right = (truth == prediction)[counted][:TOKENS].tolist()
                sample = {"prompt": "".join(before), "truth": true, "prediction": said, "right": right}
                self._samples.append(sample)

    def found(self, first: int, total: int) -> Json:
        return {"samples": self._samples}

    def merge(self, shares: Sequence[Json]) -> Json:
        return {"samples": _chained(shares, "samples")[:TEXTS]}

    def _pieces(self, tokens: Tensor) -> list[str]:
        """What each token adds to the text."""
        names = self._data.class_names
        if names is None and self._data.out_features == BYTES:
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            pieces = [decoder.decode(bytes([token])) for token in tokens.tolist()]
            return [*pieces[:-1], pieces[-1] + decoder.decode(b"", final=True)]
        between = "" if names and max(map(len, names)) == 1 else " "
        return [_name(self._data, token) + between for token in tokens.tolist()]


_FINDINGS: dict[Task, type[Findings]] = {
    Task.classification: _Classification,
    Task.multilabel: _Multilabel,
    Task.regression: _Regression,
    Task.language_modeling: _LanguageModeling,
}


def _worst(kept: list[Sample], keys: Tensor, describe: Callable[[int], Json]) -> list[Sample]:
    """The lowest of those kept and of a batch's rows, which have `keys` [rows]."""
    limit = kept[-1][0] if len(kept) == SAMPLES else torch.inf
    rows = [row for row in keys.argsort(stable=True)[:SAMPLES].tolist() if keys[row] < limit]
    return sorted([*kept, *((float(keys[row]), describe(row)) for row in rows)], key=itemgetter(0))[:SAMPLES]


def _worst_of(shares: Sequence[Json]) -> list[Json]:
    return [sample for _, sample in sorted(_chained(shares, "worst"), key=itemgetter(0))[:SAMPLES]]


def _chained(shares: Sequence[Json], key: str) -> list[Any]:
    return [entry for share in shares for entry in share[key]]


def _name(data: DataFacts, label: int) -> str:
    names = data.class_names or ()
    return names[label] if label < len(names) else str(label)


def _number(value: Any) -> float | None:
    """Six significant digits, or None where JSON has no number."""
    return float(f"{float(value):.6g}") if math.isfinite(value) else None


def _shown(row: Tensor) -> Json:
    """An input row as an image or as numbers, where it is small enough to be shown."""
    if row.ndim == 3:
        return {"image": _image(row)}
    return {"row": [_number(value) for value in row.flatten()]} if row.numel() <= NUMBERS else {}


def _image(row: Tensor) -> Json:
    """[channels, height, width] from its darkest to its brightest value as 0 … 255; grey unless it has 3 channels."""
    pixels = row.float() if row.shape[0] == 3 else row.float().mean(dim=0, keepdim=True)
    scale = min(1.0, SIDE / max(pixels.shape[1:]))
    height, width = (max(1, round(scale * side)) for side in pixels.shape[1:])
    pixels = functional.adaptive_avg_pool2d(pixels, (height, width))
    pixels = pixels - pixels.min()
    pixels = (255 * pixels / pixels.max().clamp(min=1e-12)).round().to(torch.uint8).permute(1, 2, 0)
    return {"shape": list(pixels.shape), "bytes": b64encode(bytes(pixels.flatten().tolist())).decode()}
