"""Ranks that compute one after the other, each with random numbers of its own, as processes have: exact to the bit."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import torch

from tests.fakes import Rank, results_of

SECONDS = 30.0  # a rank that waits so long for its turn has been forgotten


class Turns:
    """Only one rank at a time computes; it hands on at a collective and at its end."""

    def __init__(self, size: int) -> None:
        self._size, self._left, self._turn, self._broken = size, list(range(size)), 0, False
        self._changed = threading.Condition()

    def wait(self, rank: int) -> None:
        with self._changed:
            came = self._changed.wait_for(lambda: self._broken or self._turn == rank, SECONDS)
        if self._broken or not came:
            raise threading.BrokenBarrierError

    def hand_on(self, rank: int, ends: bool = False) -> None:
        with self._changed:
            self._turn = self._left[(self._left.index(rank) + 1) % len(self._left)]
            if ends:
                self._left.remove(rank)
            self._broken |= (
                not ends and len(self._left) < self._size
            )  # a collective without one that has ended
            self._changed.notify_all()

    def abort(self) -> None:
        with self._changed:
            self._broken = True
            self._changed.notify_all()


class LockstepRank(Rank):
    """A rank whose collectives hand the turn on."""

    def __init__(self, rank: int, size: int, turns: Turns, slots: list[Any]) -> None:
        super().__init__(rank, size, threading.Barrier(1), slots)
        self._turns = turns
        self.collectives = 0

    def _exchange(self, value: Any) -> list[Any]:
        self.collectives += 1
        self._slots[self.rank] = value
        self._others()  # all have given
        values = list(self._slots)
        self._others()  # all have taken
        return values

    def _others(self) -> None:
        if self.size > 1:
            mine = random.getstate(), np.random.get_state(), torch.get_rng_state()
            self._turns.hand_on(self.rank)
            self._turns.wait(self.rank)
            random.setstate(mine[0])
            np.random.set_state(mine[1])
            torch.set_rng_state(mine[2])


def in_lockstep(size: int, function: Any) -> list[Any]:
    """function(communicator) on `size` ranks; their results in rank order. A failing rank ends the others."""
    turns, slots = Turns(size), [None] * size

    def call(rank: int) -> Any:
        try:
            turns.wait(rank)
            found = function(LockstepRank(rank, size, turns, slots))
            turns.hand_on(rank, ends=True)
        except BaseException:
            turns.abort()
            raise
        return found

    return results_of(size, call)
