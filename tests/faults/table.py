"""The table of faults: what must hold for each, and what was measured by the tests that injected it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

BAD_INPUT = 100  # not a fault, and in the same table

MUST = {
    1: ("SIGKILL of a rank", "seen < 5 s; resumes; hash equal"),
    2: ("kill before the first checkpoint", "step 0 again; hash equal"),
    3: ("a fault that repeats", "stops after max_failures, says how often"),
    4: ("exception on a rank, on all", "< 5 s; type, message, rank, line; one cause"),
    5: ("os._exit, SystemExit in a rank", "< 5 s; exit code not 0"),
    6: ("SIGSTOP of a rank", "< Gloo timeout + 5 s"),
    7: ("a rank sleeps or spins", "< watchdog + 5 s; stacks; rank and step named"),
    8: ("rows not divisible by workers", "equal steps, each row once"),
    9: ("ranks whose step counts differ", "error before the epoch, < 5 s"),
    10: ("straggler", "finishes; step time of each rank"),
    11: ("NaN or inf, loss or gradient", "stops or skips at that step; checkpoint intact"),
    12: ("more than the machine has", "refused in < 3 s with what fits"),
    13: ("Ctrl-C, SIGTERM", "exit 130/143 in < 10 s; KILLED; a sweep too"),
    14: ("SIGKILL of the driver", "workers gone in < 10 s; FAILED at the next start; resume: hash equal"),
    15: ("kill in a checkpoint's write", "the one before or the new one loads"),
    16: ("disk full", "path and bytes; the one before intact; no temporary files"),
    17: ("newest checkpoint corrupted", "rejected, one earlier, a warning"),
    18: ("MLflow down at the start", "refused in < 15 s, or trains and is recorded later; by config"),
    19: ("MLflow dies or hangs", "≤ 10 s longer; hash equal; every metric there once in the end"),
    22: ("resume with other workers", "refused or exact steps, never silent"),
    23: ("a job of a sweep fails", "the others run; listed with its reason; exit code not 0"),
    24: ("a sweep is killed", "again: finished jobs are not run, the interrupted one resumes"),
    BAD_INPUT: ("bad input", "one line with what to type, exit code 2, < 3 s, nothing launched"),
}


@dataclass
class Measured:
    """Of one injection."""

    row: int
    fault: str
    figures: list[str] = field(default_factory=list)

    def seconds(self, what: str, value: float, below: float) -> None:
        """Assert a time of the table."""
        self.figures.append(f"{what} {value:.1f} s")
        assert value < below, f"{what}: {value:.1f} s, {below:g} s are allowed"

    def holds(self, what: str) -> None:
        """Say something that the test has asserted."""
        self.figures.append(what)


def lines(measured: Iterable[tuple[Measured, bool]]) -> list[str]:
    """The table as text: a fault, then its injections."""
    rows = sorted(measured, key=lambda each: each[0].row)
    found: list[str] = []
    for row, (name, must) in MUST.items():
        of_row = [(each, ok) for each, ok in rows if each.row == row]
        if of_row:
            found.append(f"{row:>3} {name}: {must}")
        for each, ok in of_row:
            found.append(f"    {'ok    ' if ok else 'FAILED'}  {each.fault}: {', '.join(each.figures)}")
    return found
