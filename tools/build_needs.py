"""What a build of Horovod needs from the machine: compilers, make, patch, Python's headers; maybe CUDA."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

# What must be on the PATH: any of the commands, Debian's package, its name elsewhere.
TOOLS = (
    (("c++", "g++", "clang++"), "g++", "a C++ compiler with C++20 (GCC 10 or newer)"),
    (("cc", "gcc", "clang"), "gcc", "a C compiler"),
    (("make",), "make", "GNU make"),
    (("patch",), "patch", "GNU patch"),
)
CXX_PROBE = "#include <concepts>\n#include <string>\nstd::string probe() { return {}; }\n"


class BuildError(Exception):
    """What the user should read: one line, or one line and the end of a log."""


@dataclass(frozen=True)
class Cuda:
    """A CUDA toolkit whose nvcc runs."""

    home: Path
    major: int


def missing_tools(
    which: Callable[[str], str | None], env: Mapping[str, str], headers: Path
) -> list[tuple[str, str]]:
    """(Debian package, general name) of each thing that a build needs and this machine lacks."""
    named = {"g++": env.get("CXX"), "gcc": env.get("CC")}
    missing = []
    for commands, debian, general in TOOLS:
        own = named.get(debian)
        if not any(map(which, [own.split()[0]] if own else commands)):
            missing.append((debian, general))
    if not (headers / "Python.h").is_file():
        version = "{}.{}".format(*sys.version_info)
        missing.append((f"python{version}-dev", f"the headers of Python {version}"))
    return missing


def missing_line(missing: list[tuple[str, str]]) -> str:
    packages = " ".join(debian for debian, _ in missing)
    general = ", ".join(name for _, name in missing)
    return (
        f"building Horovod needs {general}: `apt-get install {packages}` on Debian, or your system's package"
    )


def check_tools() -> None:
    """Raise one line if something is missing that would stop a build."""
    missing = missing_tools(shutil.which, os.environ, Path(sysconfig.get_path("include")))
    if missing:
        raise BuildError(missing_line(missing))
    own = os.environ.get("CXX", "").split()
    compiler = own or [next(command for command in TOOLS[0][0] if shutil.which(command))]
    with tempfile.TemporaryDirectory() as folder:
        command = [*compiler, "-std=c++20", "-shared", "-fPIC", "-x", "c++", "-", "-o", f"{folder}/probe.so"]
        probe = subprocess.run(command, input=CXX_PROBE, capture_output=True, text=True, check=False)
    if probe.returncode:
        raise BuildError(f"{compiler[0]} does not compile C++20: " + missing_line([TOOLS[0][1:]]))


def check_venv() -> None:
    # Debian's python3 has venv but not ensurepip until python3-venv is installed.
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        version = "{}.{}".format(*sys.version_info)
        raise BuildError(
            f"{sys.executable} cannot make environments: `apt-get install python{version}-venv` on Debian, "
            "or a Python with the modules venv and ensurepip"
        )


def find_toolkit(env: Mapping[str, str]) -> Cuda | None:
    """The first nvcc that runs."""
    homes = [env[name] for name in ("CUDA_HOME", "CUDA_PATH") if env.get(name)]
    on_path = shutil.which("nvcc", path=env.get("PATH"))
    candidates = [*(f"{home}/bin/nvcc" for home in homes), on_path, "/usr/local/cuda/bin/nvcc"]
    found = (run_nvcc(Path(nvcc)) for nvcc in candidates if nvcc and os.access(nvcc, os.X_OK))
    return next((toolkit for toolkit in found if toolkit is not None), None)


def run_nvcc(nvcc: Path) -> Cuda | None:
    """Ask nvcc for its version and home: the one on the PATH may be a wrapper that lies elsewhere."""
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
    command = [str(nvcc), "--dryrun", "-x", "cu", "-E", os.devnull]
    dry_run = subprocess.run(command, capture_output=True, text=True, check=False)
    return parse_toolkit(version.stdout, dry_run.stderr)


def parse_toolkit(version: str, dry_run: str) -> Cuda | None:
    release = re.search(r"release (\d+)\.\d+", version)
    top = re.search(r"^#\$ TOP=(.+)$", dry_run, re.MULTILINE)
    if release is None or top is None:
        return None
    return Cuda(Path(os.path.normpath(top[1].strip())), int(release[1]))
