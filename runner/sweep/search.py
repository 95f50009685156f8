"""Searches: what is tried next, learned from the jobs that ended, and which of those that run end early.

- random: Bergstra and Bengio 2012, "Random Search for Hyper-Parameter Optimization".
- tpe: Bergstra et al. 2011, "Algorithms for Hyper-Parameter Optimization", section 4; in the multivariate form of Falkner et al.
  2018, "BOHB", section 3.2, which models keys together, because a good LR depends on the batch. Jobs that still run count as bad
  ones (Optuna's constant liar), so that several at a time do not try the same.
- asha: Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning", in Optuna's form: after min_epochs × reductionᵏ
  epochs a job goes on if it is among the best of those that have come so far (one in `reduction`, or the best of fewer), else it
  ends. Algorithm 2 of the paper would let it wait, and go on with it once enough others are worse.

The study is Optuna's, in memory, and made anew of the trials that MLflow has.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import Override

from runner.errors import refuse
from runner.sweep.source import FINISHED, KILLED, PRUNED, Source, Trial
from runner.sweep.space import Space, space
from runner.sweep_schema import Method, Search

if TYPE_CHECKING:
    import optuna

TRIALS = 20
TRIES = 10  # to get from a sampler what was not tried before


def open_search(
    search: Search, overrides: Sequence[Override], maximise: bool, earlier: Sequence[Trial] = ()
) -> Source:
    """The source of a random, tpe or asha search over those of the overrides that have several values.

    `earlier` are the trials that this search had before: those that ended are known, interrupted ones (None, KILLED) come
    first again. Where a key is missing or a value is not in today's space, only the trial's number is kept. Raises ConfigError.
    """
    method = search.method.name
    assert search.method not in (Method.grid, Method.pbt)
    found = space(overrides)
    if not found.axes:
        example = "optimizer.lr=0.1,0.01, or 'optimizer.lr=tag(log,interval(0.001,1))'"
        raise refuse("search.method", method, "no key has several values to search over", example)
    return Searched(search, found, maximise, earlier)


class Searched:
    """A Source. Of a space that can be listed each point is tried once: those that tpe picks, else all in a random order.

    What a trial tries depends on search.seed, its number, and which trials had ended how, or ran, when it was asked for; for
    random and asha on the points that were tried alone. So a search with one job at a time that was left and taken up again is
    the one that was not left; with several at a time, tpe depends on which of them ended first.
    """

    def __init__(self, search: Search, found: Space, maximise: bool, earlier: Sequence[Trial]) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        pruner = optuna.pruners.SuccessiveHalvingPruner(search.min_epochs, search.reduction)
        self._study = optuna.create_study(direction="maximize" if maximise else "minimize", pruner=pruner)
        self._search, self._space, self._distributions = search, found, found.distributions()
        self._running: dict[int, optuna.Trial] = {}
        self._reported: dict[int, int] = {}  # epochs of each trial's last value
        self._tried: set[tuple[Any, ...]] = set()
        self._untried = self._in_random_order()
        self._again: list[Trial] = []
        outside = 0
        for trial in sorted(earlier, key=lambda each: each.number):
            parameters = found.parameters(trial.overrides)
            if parameters is None:
                outside += 1
            else:
                self._recall(trial, parameters)
        self._number = max((trial.number + 1 for trial in earlier), default=0)
        self._new = max(0, self._size(outside) - len(earlier))
        self.total = len(earlier) + self._new

    def _size(self, outside: int) -> int:
        """Trials, of which some are outside of today's space."""
        trials, points = self._search.trials, self._space.points
        if trials is None and (points is None or self._search.method is Method.tpe):
            trials = TRIALS
        return min(size for size in (trials, points and points + outside) if size is not None)

    def next(self) -> Trial | None:
        if self._again:
            return self._again.pop(0)
        if not self._new:
            return None
        number = self._number
        begun = self._begin(number)
        self._number, self._new = number + 1, self._new - 1
        return Trial(number, self._space.overrides(begun.params))

    def told(self, trial: Trial) -> None:
        from optuna.trial import TrialState

        if trial.status in (None, KILLED):
            return  # it is tried again another time
        begun, value = self._running.pop(trial.number), trial.value
        if trial.status == FINISHED and value is not None and math.isfinite(value):
            self._study.tell(begun, value)
        elif trial.status == PRUNED or (value is not None and not math.isfinite(value)):
            # A training that diverged is worse than all others; of one that failed for another reason nothing is known.
            self._study.tell(begun, state=TrialState.PRUNED)
        else:
            self._study.tell(begun, state=TrialState.FAIL)

    def prunes(self, number: int, epochs: float, value: float) -> bool:
        return self._search.method is Method.asha and self._report(number, epochs, value)

    def _report(self, number: int, epochs: float, value: float) -> bool:
        if not math.isfinite(value):
            return True
        complete = math.floor(epochs)  # Optuna counts in whole ones
        if complete <= self._reported.get(number, 0):  # not one more, or measured again after a restart
            return False
        self._reported[number] = complete
        self._running[number].report(value, complete)
        return self._running[number].should_prune()

    def _recall(self, trial: Trial, parameters: dict[str, Any]) -> None:
        """Put a trial into the study as if it had been asked for, had reported and was told of here."""
        number = trial.number
        self._enter(number, self._fixed(parameters))
        for epochs, value in sorted(trial.values.items()):
            if self._search.method is Method.asha or trial.status == PRUNED:
                self._report(number, epochs, value)
                if epochs < max(trial.values):  # it went on, whatever those say that began later
                    while self._running[number].should_prune():
                        pass
        self.told(trial)
        if number in self._running:
            self._again.append(Trial(number, trial.overrides))

    def _begin(self, number: int) -> optuna.Trial:
        """In Optuna's study, with a point that was not tried before (as far as there is one)."""
        from optuna.trial import TrialState

        if self._search.method is Method.tpe or self._space.points is None:
            for attempt in range(TRIES):
                self._study.sampler = self._sampler(number, attempt)
                begun = self._study.ask(self._distributions)
                if self._point(begun) not in self._tried or (
                    self._space.points is None and attempt == TRIES - 1
                ):
                    return self._enter(number, begun)
                self._study.tell(begun, state=TrialState.FAIL)
        return self._enter(number, self._fixed(next(self._untried)))

    def _enter(self, number: int, begun: optuna.Trial) -> optuna.Trial:
        self._running[number] = begun
        self._tried.add(self._point(begun))
        return begun

    def _point(self, begun: optuna.Trial) -> tuple[Any, ...]:
        return tuple(begun.params[key] for key in self._space.axes)

    def _fixed(self, parameters: dict[str, Any]) -> optuna.Trial:
        from optuna.samplers import RandomSampler

        self._study.sampler = RandomSampler(seed=0)  # it is not asked
        self._study.enqueue_trial(parameters)
        return self._study.ask(self._distributions)

    def _sampler(self, number: int, attempt: int) -> optuna.samplers.BaseSampler:
        """One a trial: what a sampler drew before is not known any more when the search is taken up again."""
        from optuna.samplers import RandomSampler, TPESampler

        seed = random.Random(f"{self._search.seed} {number} {attempt}").randrange(1 << 32)
        if self._search.method is Method.tpe:
            return TPESampler(seed=seed, multivariate=True, constant_liar=True)
        return RandomSampler(seed=seed)

    def _in_random_order(self) -> Iterator[dict[str, Any]]:
        drawn, points = random.Random(self._search.seed), self._space.points
        while points is not None:
            parameters = self._space.point(drawn.randrange(points))
            if tuple(parameters.values()) not in self._tried:
                yield parameters
