"""Whole-process wall time of the main job ÷ the hand-written script, interleaved, after one warm-up of each.

    python benchmarks/main_job.py [runs]

The MLflow store exists and byte-code is warm by the warm-up. Prints every pair, the medians and their ratio.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def seconds(command: list[str], folder: Path) -> float:
    """Wall time of one run; its output is kept in `folder`/output.txt."""
    before = time.perf_counter()
    with (folder / "output.txt").open("a") as output:
        subprocess.run(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, check=True)
    return time.perf_counter() - before


def main(runs: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        by_hand = [sys.executable, str(HERE / "hand_written.py"), str(folder / "by_hand")]
        ours = [sys.executable, "-m", "runner", "model=mlp", "scaling.num_workers=4"]
        pairs = []
        for run in range(runs + 1):
            pair = (seconds(ours, folder), seconds(by_hand, folder))
            print(
                f"{'warm-up' if run == 0 else f'run {run}'}: runner {pair[0]:.1f} s, by hand {pair[1]:.1f} s",
                flush=True,
            )
            pairs.append(pair)
        runner, hand = (statistics.median(column) for column in zip(*pairs[1:], strict=True))
        print(f"medians of {runs}: runner {runner:.2f} s, by hand {hand:.2f} s, ratio {runner / hand:.3f}")
        phases = [
            json.loads(path.read_text())["seconds"] for path in folder.glob("outputs/runs/*/*/result.json")
        ]
        medians = {phase: statistics.median(found[phase] for found in phases) for phase in phases[0]}
        print("runner's phases:", "  ".join(f"{phase} {value:.2f}" for phase, value in medians.items()))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
