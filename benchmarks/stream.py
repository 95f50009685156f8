"""An epoch over data larger than memory: peak memory of every process, and samples/s.

    python benchmarks/stream.py FOLDER [gigabytes]

Writes so many GB (default 5) of Parquet into FOLDER once, and trains an epoch of it on two workers with
`dataset.ingest=ray_data` through `python -m runner`. Memory is PSS, which divides shared pages (Ray's object store
among them) by the number of processes that have them mapped.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import psutil

COLUMNS, FILE_ROWS, GROUP_ROWS, VAL_ROWS = 256, 250_000, 50_000, 50_000
SAMPLE_SECONDS = 0.5


def write(folder: Path, gigabytes: float) -> None:
    """Files of standard normal float32 columns and a label: the sign of a sum of some of them."""
    import pyarrow as pa
    from pyarrow import parquet

    rows = int(gigabytes * 1e9 / (4 * COLUMNS + 8))
    starts = list(range(0, rows, FILE_ROWS))
    sizes = {f"train/{start // FILE_ROWS:04d}.parquet": min(FILE_ROWS, rows - start) for start in starts}
    for number, (name, size) in enumerate({**sizes, "val.parquet": VAL_ROWS}.items()):
        path = folder / name
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        values = np.random.default_rng(number).standard_normal((COLUMNS, size), dtype=np.float32)
        columns = {f"x{index}": column for index, column in enumerate(values)}
        table = pa.table({**columns, "label": (values[:8].sum(axis=0) > 0).astype(np.int64)})
        parquet.write_table(
            table,
            path.with_suffix(".part"),
            row_group_size=GROUP_ROWS,
            compression="none",
            use_dictionary=False,
        )
        path.with_suffix(".part").rename(path)


def train(folder: Path, run_dir: Path) -> dict[str, float]:
    """Peak MB by kind of process, sampled while `python -m runner` trains."""
    command = [
        *(sys.executable, "-m", "runner", "dataset=table", f"dataset.path={folder / 'train'}"),
        *(f"dataset.val_path={folder / 'val.parquet'}", "dataset.target=label", "dataset.ingest=ray_data"),
        *("model=mlp", "scaling.num_workers=2", "trainer.epochs=1", "trainer.batch_size=128"),
        *("tracking=none", f"hydra.run.dir={run_dir}"),
    ]
    peaks: dict[str, float] = defaultdict(float)
    with subprocess.Popen(command) as running:
        while running.poll() is None:
            sampled = [
                (process, found) for process in tree(running.pid) if (found := pss(process.pid)) is not None
            ]
            for process, found in sampled:
                with contextlib.suppress(psutil.Error):
                    name = kind(process, running.pid)
                    peaks[name] = max(peaks[name], found)
            peaks["all together"] = max(peaks["all together"], sum(found for _, found in sampled))
            time.sleep(SAMPLE_SECONDS)
    if running.returncode:
        raise SystemExit(running.returncode)
    return peaks


def tree(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return []


def kind(process: psutil.Process, driver: int) -> str:
    """Ray names its processes after what they run."""
    name = process.name()
    if process.pid == driver:
        return "the driver"
    if "RayTrainWorker" in name:
        return "a rank"
    if "ReadPieces" in name or "IDLE" in name:
        return "a reading task, or idle"
    return "another process of Ray" if name.startswith("ray::") else name


def pss(pid: int) -> float | None:
    """Proportional set size in MB; None for a process that is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), None)


def main(folder: Path, gigabytes: float) -> None:
    write(folder, gigabytes)
    size = sum(path.stat().st_size for path in folder.glob("train/*.parquet"))
    with tempfile.TemporaryDirectory() as temporary:
        peaks = train(folder, Path(temporary) / "run")
        result = json.loads((Path(temporary) / "run" / "result.json").read_text())
    rate, seconds = (result["metrics"][key] for key in ("throughput/samples_per_second", "seconds/training"))
    print(
        f"{size / 1e9:.2f} GB, an epoch in {seconds:.1f} s: {rate:,.0f} samples/s, {size / seconds / 1e6:.0f} MB/s"
    )
    print(
        "seconds by phase:", "  ".join(f"{phase} {value:.1f}" for phase, value in result["seconds"].items())
    )
    for name, peak in sorted(peaks.items(), key=lambda item: -item[1]):
        print(f"peak {name:24} {peak:6.0f} MB")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]).absolute(), float(sys.argv[2]) if len(sys.argv) > 2 else 5.0)
