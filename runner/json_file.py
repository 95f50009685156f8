"""Small JSON files that processes leave for each other: there as a whole or not at all, and without secrets."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from runner.secrets import masked


def write_json(path: Path, content: Any, durable: bool = False) -> None:
    """A kill at any moment leaves the old file, if any, or the new one; `durable`: a power cut too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}")
    with temporary.open("w") as file:
        json.dump(masked(content), file, indent=2)
        file.write("\n")
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
