"""What the jobs of a study say together: best metric by rule and batch, orderings, and the exponent of the best LR.

The orderings are those of Goyal et al. 2017, "Accurate, Large Minibatch SGD" (table 2 for the rules, table 1 for the
warm-up, figure 1 for the batch at which the linear rule breaks). All intervals are 95 %. Pure arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.errors import NOT_FINITE
from runner.ledger import plan_learning_rate
from runner.schema import Experiment, Mode

LEVEL = 0.95
RESAMPLES = 2000
BySeed = dict[int, float]


@dataclass(frozen=True)
class Trial:
    """One job."""

    rule: str
    num_workers: int
    batch_size: int  # rows a worker and micro-batch
    accumulation_steps: int
    kappa: float
    base_lr: float
    scaled_lr: float
    has_warmup: bool
    seed: int
    value: float | None  # the best of the monitored metric; None where it diverged or failed
    status: str = "finished"  # diverged: a loss that was not finite; failed: anything else

    @property
    def batch(self) -> int:
        """Rows of a global batch."""
        return self.num_workers * self.batch_size * self.accumulation_steps

    @property
    def made_of(self) -> str:
        """How the batch came about; accumulation simulates workers that were not there."""
        workers = f"{self.num_workers} × {self.batch_size}"
        simulated = f" × {self.accumulation_steps} simulated" if self.accumulation_steps > 1 else ""
        return workers + simulated


@dataclass(frozen=True)
class Mean:
    """Over seeds, with Student's interval; `half` is NaN for a single one, all is for none."""

    mean: float
    half: float
    seeds: int

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half


@dataclass(frozen=True)
class Verdict:
    claim: str
    shown: bool
    why: str

    def line(self) -> str:
        return f"{self.claim}: {'shown' if self.shown else 'not shown'}: {self.why}"


@dataclass(frozen=True)
class BestLR:
    """The scaled LR with the best mean at a batch, and its neighbours among those measured; None at the grid's end."""

    lr: float
    below: float | None
    above: float | None


@dataclass(frozen=True)
class Exponent:
    """Least squares of log(best LR) on log(batch): 1 is the linear rule, 0.5 the square root."""

    value: float
    low: float  # NaN for a single seed
    high: float
    best: Mapping[int, BestLR]  # by batch


def trial(experiment: Experiment, result: Mapping[str, Any]) -> Trial | None:
    """The job in figures; None for one that measured nothing on purpose (dry_run). Raises ConfigError as the plan does."""
    if result["status"] == "DRY_RUN":
        return None
    lr, trainer = plan_learning_rate(experiment), experiment.trainer
    value = result.get("best", {}).get(experiment.checkpoint.monitor)
    has_value = result["status"] == "FINISHED" and value is not None and math.isfinite(value)
    diverged = result["status"] == "FINISHED" or NOT_FINITE in str(result.get("error"))
    return Trial(
        rule=lr.rule,
        num_workers=experiment.scaling.num_workers,
        batch_size=trainer.batch_size,
        accumulation_steps=trainer.accumulation_steps,
        kappa=lr.kappa,
        base_lr=lr.base,
        scaled_lr=lr.scaled,
        has_warmup=bool(lr.warmup_epochs or lr.warmup_steps),
        seed=experiment.seed,
        value=value if has_value else None,
        status="finished" if has_value else "diverged" if diverged else "failed",
    )


class Study:
    """The trials of one study, their metric, and what follows from them."""

    def __init__(self, trials: Sequence[Trial], monitor: str, mode: Mode) -> None:
        self.trials, self.monitor = list(trials), monitor
        self.sign = 1 if mode is Mode.max else -1
        self.rules = list(dict.fromkeys(each.rule for each in self.trials))
        self.batches = sorted({each.batch for each in self.trials})
        self.base_lrs = sorted({each.base_lr for each in self.trials})
        self.base_lr = self._tuned() if self.trials else math.nan

    def cell(self, rule: str, batch: int, base_lr: float | None = None) -> list[Trial]:
        """Trials of a rule and batch at a base LR, the tuned one unless it is given."""
        base_lr = self.base_lr if base_lr is None else base_lr
        wanted = (rule, batch, base_lr)
        return [each for each in self.trials if (each.rule, each.batch, each.base_lr) == wanted]

    def verdicts(self) -> list[Verdict]:
        """The orderings at a medium batch (the middle one of those above the smallest) and at the largest."""
        if len(self.batches) < 2:
            return []
        smallest, *above = self.batches
        medium, large = above[(len(above) - 1) // 2], above[-1]
        found = [
            self._better(("sqrt", medium), ("none", medium)),
            self._better(("linear", medium), ("sqrt", medium)),
        ]
        if large > medium:
            breaks = f"linear is worse at batch {large} than at {smallest}"
            found.append(self._better(("linear", smallest), ("linear", large), breaks))
            found.append(self._better(("linear_warmup", large), ("linear", large)))
        return found

    def exponent(self) -> Exponent | None:
        """From all trials without warm-up, over all rules and base LRs; its interval by resampling the seeds (seeded).

        An LR at which a seed has no value is no candidate. None with fewer than two batches.
        """
        trials = [each for each in self.trials if not each.has_warmup]
        seeds = sorted({each.seed for each in trials})
        grids = {batch: self._grid(trials, batch, seeds) for batch in self.batches}
        grids = {batch: grid for batch, grid in grids.items() if np.isfinite(grid[1]).all(axis=1).any()}
        if len(grids) < 2:
            return None
        once = np.ones((1, len(seeds)))
        resampled = np.random.default_rng(0).multinomial(len(seeds), once[0] / len(seeds), RESAMPLES)
        (value,), slopes = self._slopes(grids, once), self._slopes(grids, resampled)
        low, high = np.quantile(slopes, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        if len(seeds) < 2:
            low = high = math.nan
        best = {}
        for batch, (lrs, values) in grids.items():
            index = int(self._argbest(values, once)[0])
            around = [None, *lrs.tolist(), None]
            best[batch] = BestLR(float(lrs[index]), around[index], around[index + 2])
        return Exponent(float(value), float(low), float(high), best)

    def _tuned(self) -> float:
        """The base LR that is best at the smallest batch, where all rules are the same; the lowest of equals."""
        at_smallest = [each for each in self.trials if each.batch == self.batches[0]]
        seeds = len({each.seed for each in at_smallest})
        best, tuned = -math.inf, self.base_lrs[0]
        for base_lr in self.base_lrs:
            values = by_seed(each for each in at_smallest if each.base_lr == base_lr)
            score = self.sign * float(np.mean(list(values.values()))) if len(values) == seeds else -math.inf
            if score > best:
                best, tuned = score, base_lr
        return tuned

    def _grid(self, trials: Sequence[Trial], batch: int, seeds: Sequence[int]) -> tuple[Any, Any]:
        """(LRs [n], values [n, seeds]) measured at a batch; NaN where there is no value."""
        here = [each for each in trials if each.batch == batch]
        lrs = sorted({_rounded(each.scaled_lr) for each in here})
        values = np.full((len(lrs), len(seeds)), np.nan)
        for row, lr in enumerate(lrs):
            for seed, value in by_seed(each for each in here if _rounded(each.scaled_lr) == lr).items():
                values[row, seeds.index(seed)] = value
        return np.array(lrs), values

    def _argbest(self, values: Any, weights: Any) -> Any:
        """Index of the best LR for each row of weights [rows, seeds]."""
        means = weights @ (self.sign * values).T  # NaN where a seed has none
        return np.where(np.isnan(means), -np.inf, means).argmax(axis=1)

    def _slopes(self, grids: Mapping[int, tuple[Any, Any]], weights: Any) -> Any:
        x = np.log(np.array(list(grids), np.float64))
        y = np.stack([np.log(lrs)[self._argbest(values, weights)] for lrs, values in grids.values()], axis=1)
        centred = x - x.mean()
        return y @ centred / (centred @ centred)

    def _better(self, good: tuple[str, int], bad: tuple[str, int], claim: str | None = None) -> Verdict:
        """Whether `good` (rule, batch) has the better metric than `bad`: the interval of the differences of the same
        seeds is all above 0."""
        claim = claim or f"{good[0]} is better than {bad[0]} at batch {good[1]}"
        cells = [self.cell(*good), self.cell(*bad)]
        for (rule, batch), cell in zip((good, bad), cells, strict=True):
            if not cell:
                return Verdict(claim, False, f"there is no job of {rule} at batch {batch}")
        ours, theirs = (by_seed(cell) for cell in cells)
        lost, lost_by_bad = (sum(each.value is None for each in cell) for cell in cells)
        if ours and not lost and not theirs:
            return Verdict(claim, True, f"{bad[0]} has no value at batch {bad[1]} for any seed")
        common = sorted(set(ours) & set(theirs))
        gain = mean_of([self.sign * (ours[seed] - theirs[seed]) for seed in common])
        why = f"{self.monitor} by {signed(gain)}, {gain.seeds} seed{'s' * (gain.seeds != 1)}"
        if lost or lost_by_bad:
            why += f"; without a value: {lost} of {good[0]}, {lost_by_bad} of {bad[0]}"
        return Verdict(claim, gain.low > 0 and lost <= lost_by_bad, why)


def by_seed(trials: Iterable[Trial]) -> BySeed:
    """The mean value of each seed that has one; the same training done twice counts once."""
    values: dict[int, list[float]] = {}
    for each in trials:
        if each.value is not None:
            values.setdefault(each.seed, []).append(each.value)
    return {seed: float(np.mean(found)) for seed, found in sorted(values.items())}


def mean_of(values: Sequence[float]) -> Mean:
    """Mean and half of Student's interval over independent values."""
    count = len(values)
    if count < 2:
        return Mean(values[0] if values else math.nan, math.nan, count)
    from scipy.special import stdtrit

    quantile = stdtrit(count - 1, (1 + LEVEL) / 2)
    half = quantile * np.std(values, ddof=1) / math.sqrt(count)
    return Mean(float(np.mean(values)), float(half), count)


def signed(gain: Mean) -> str:
    """+0.0315 [+0.0168, +0.0462]"""
    if not gain.seeds:
        return "n/a"
    interval = f"{gain.low:+.4f}, {gain.high:+.4f}" if gain.seeds > 1 else "n/a"
    return f"{gain.mean:+.4f} [{interval}]"


def _rounded(lr: float) -> float:
    """LRs that two rules reach by different products are one."""
    return float(f"{lr:.6g}")
