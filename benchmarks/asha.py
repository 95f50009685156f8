"""Epochs that asha trains ÷ epochs that the whole grid trains, on digits: 64 configurations, 27 epochs, reduction 3, three seeds.

    python benchmarks/asha.py [seeds]

Prints both sums, the best validation loss of each, and how far the grid's best lie apart over the seeds.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from pathlib import Path

AXES = (
    "optimizer.lr=0.001,0.003,0.01,0.03,0.1,0.2,0.4,0.8",
    "model.hidden=[16],[32],[64],[128]",
    "optimizer.momentum=0,0.9",
)


def swept(folder: Path, *arguments: str) -> tuple[float, float]:
    """(epochs of all jobs, best val/loss) of a sweep that uses nothing of an earlier one."""
    common = (
        "trainer.epochs=27",
        "scaling.num_workers=2",
        "sweep.cache=false",
        "trainer.on_nonfinite=ignore",
    )
    command = [sys.executable, "-m", "runner", "--multirun", *AXES, *common, *arguments]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    newest = max(
        folder.glob("outputs/multiruns/*/*/leaderboard/leaderboard.csv"),
        key=lambda path: path.stat().st_mtime,
    )
    with newest.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 64
    values = [float(row["val/loss"]) for row in rows if row["val/loss"]]
    return sum(float(row["epochs"]) for row in rows), min(values)


def main(seeds: int) -> None:
    bests = []
    with tempfile.TemporaryDirectory() as temporary:
        for seed in range(seeds):
            folder = Path(temporary)
            grid, asha = (
                swept(folder, f"seed={seed}", *more)
                for more in ((), ("search=asha", "search.reduction=3", f"search.seed={seed}"))
            )
            bests.append(grid[1])
            print(
                f"seed {seed}: grid {grid[0]:g} epochs, best {grid[1]:.4f}; asha {asha[0]:g} epochs "
                f"({asha[0] / grid[0]:.3f}), best {asha[1]:.4f}",
                flush=True,
            )
    print(f"best of the grid over seeds: {min(bests):.4f} to {max(bests):.4f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
