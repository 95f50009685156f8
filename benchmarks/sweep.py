"""Whole-process wall time of 16 digits jobs: a hand-written multirun ÷ runner, and runner ÷ one bare warm group; interleaved.

    python benchmarks/sweep.py [runs]

The same 16 trainings (2 workers, 3 epochs) by sweep_by_hand.py, a HorovodTrainer.fit a job; by runner, everything recorded in
MLflow with checkpoints; and by sweep_bare.py, all of them in one process group with nothing around them. After one warm-up of
each. Checks that the final validation losses are the same in all, prints every run, the medians and both ratios.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
LRS, WIDTHS, EPOCHS = (0.01, 0.03, 0.1, 0.3), (32, 64, 128, 256), 3
LRS_TEXT, WIDTHS_TEXT = ",".join(map(str, LRS)), ",".join(map(str, WIDTHS))
COMMANDS = {
    "by hand": [
        str(HERE / "sweep_by_hand.py"),
        "--multirun",
        f"lr={LRS_TEXT}",
        f"hidden={WIDTHS_TEXT}",
        f"epochs={EPOCHS}",
    ],
    "runner": [
        *("-m", "runner", "--multirun", "model=mlp", "scaling.num_workers=2", f"trainer.epochs={EPOCHS}"),
        *(f"optimizer.lr={LRS_TEXT}", f"model.hidden={','.join(f'[{width}]' for width in WIDTHS)}"),
        "sweep.cache=false",
    ],
    "bare": [str(HERE / "sweep_bare.py"), f"lr={LRS_TEXT}", f"hidden={WIDTHS_TEXT}", f"epochs={EPOCHS}"],
}
LOSS = re.compile(r"lr=([\d.]+) hidden=(\d+) loss ([\d.]+)")
Losses = dict[tuple[float, int], float]


def run(name: str, folder: Path) -> tuple[float, Losses]:
    """Seconds of one run, and the final validation loss by (LR, width)."""
    before = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *COMMANDS[name]], cwd=folder, capture_output=True, text=True, check=True
    )
    seconds = time.perf_counter() - before
    if name != "runner":
        return seconds, {
            (float(lr), int(width)): float(loss) for lr, width, loss in LOSS.findall(done.stdout)
        }
    newest = max(folder.glob("outputs/multiruns/*/*"), key=lambda path: path.stat().st_mtime)
    losses = {}
    for path in newest.glob("*/result.json"):
        asked = dict(
            each.split("=") for each in json.loads((path.parent / "run.json").read_text())["overrides"]
        )
        job = float(asked["optimizer.lr"]), int(asked["model.hidden"].strip("[]"))
        losses[job] = json.loads(path.read_text())["metrics"]["val/loss"]
    return seconds, losses


def main(runs: int) -> None:
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(runs + 1):
            found = {name: run(name, Path(temporary)) for name in COMMANDS}
            said = ", ".join(f"{name} {seconds:.1f} s" for name, (seconds, _) in found.items())
            print(f"{'warm-up' if number == 0 else f'run {number}'}: {said}", flush=True)
            reference = found["bare"][1]
            assert len(reference) == len(LRS) * len(WIDTHS)
            for name, (seconds, losses) in found.items():
                assert losses.keys() == reference.keys(), name
                assert all(abs(losses[job] - reference[job]) < 1e-5 for job in reference), name
                if number:
                    taken[name].append(seconds)
    medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
    print(f"medians of {runs}:", ", ".join(f"{name} {seconds:.2f} s" for name, seconds in medians.items()))
    print(f"by hand ÷ runner {medians['by hand'] / medians['runner']:.2f}")
    print(f"runner ÷ bare {medians['runner'] / medians['bare']:.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
