"""Bits a byte of held-out documentation: the language model of experiment=text, against gzip -9.

    python benchmarks/text_compression.py [overrides…]

Prints three costs of the same bytes, the end of this project's documentation that the model was not trained on:
the model's (its first byte counted as 8 bits), gzip's of these bytes alone, and gzip's of them after the training part
(the whole compressed less the training part compressed), which like the model knows that part. Then the ratios.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from datasets.text import divide, read

VAL_FRACTION = 0.1


def train(overrides: list[str]) -> float:
    """val/bits_per_token of the finished run, whose tokens are bytes."""
    settings = [
        "experiment=text",
        "dataset.level=byte",
        "dataset.path=null",
        f"dataset.val_fraction={VAL_FRACTION}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "runner", *overrides, *settings]
        subprocess.run(command, cwd=folder, stdout=sys.stderr, check=True)
        (result,) = Path(folder).glob("outputs/runs/*/*/result.json")
        return float(json.loads(result.read_text())["metrics"]["val/bits_per_token"])


def bits(content: bytes) -> int:
    return 8 * len(gzip.compress(content, compresslevel=9, mtime=0))


def main(overrides: list[str]) -> None:
    known, held_out = divide(read(), VAL_FRACTION)
    before = time.perf_counter()
    model = train(overrides) * (len(held_out) - 1) + 8
    seconds = time.perf_counter() - before
    print(
        f"{len(held_out)} held-out bytes, after {len(known)} to train on; trained in {seconds:.0f} s with Ray's start"
    )
    print(f"model           {model / len(held_out):.3f} bits a byte")
    for name, peer in (
        ("gzip -9, alone", bits(held_out)),
        ("gzip -9, after", bits(known + held_out) - bits(known)),
    ):
        print(f"{name}  {peer / len(held_out):.3f} bits a byte, model ÷ gzip {model / peer:.3f}")


if __name__ == "__main__":
    main(sys.argv[1:])
