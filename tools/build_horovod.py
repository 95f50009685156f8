"""Build Horovod from its source distribution, or take the wheel of an earlier build, and install it.

No index has a wheel of Horovod 0.28.1, and its source does not compile against today's torch. So the
pinned sdist is patched, built against the torch of this environment, and the wheel kept in the user's
cache directory under everything it depends on. Run it as `python -m tools.build_horovod` in the checkout's
root, with the Python of the environment that is to have Horovod; `--check` only looks for what a build would
need, before there is an environment.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.build_needs import BuildError, Cuda, check_tools, check_venv, find_toolkit

VERSION = "0.28.1"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
PATCH = Path(__file__).resolve().with_name(f"horovod-{VERSION}.patch")


@dataclass(frozen=True)
class Facts:
    """What a Horovod wheel depends on, and where the parts of a CUDA build lie."""

    torch: str
    torch_cuda: str | None  # the CUDA version that torch was built with
    python: str
    libc: str
    site: Path  # the environment's site-packages
    toolkit: Cuda | None

    @property
    def variant(self) -> str:
        """CUDA only where torch has it and an nvcc of the same major version can compile for it."""
        if self.torch_cuda is None or self.toolkit is None:
            return "cpu"
        return "cuda" if self.torch_cuda.split(".")[0] == str(self.toolkit.major) else "cpu"


def say(line: str) -> None:
    print(line, flush=True)


def cache_root(env: Mapping[str, str], home: Path) -> Path:
    base = Path(env.get("XDG_CACHE_HOME", ""))
    # The XDG specification says to ignore a path that is not absolute.
    return (base if base.is_absolute() else home / ".cache") / "runner" / "horovod"


def python_tag() -> str:
    return str(sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag)


def libc_tag() -> str:
    return "".join(platform.libc_ver()) or platform.system().lower()


def key_prefix(patch: bytes, python: str, libc: str) -> str:
    return f"{VERSION}-{hashlib.sha256(patch).hexdigest()[:12]}-{python}-{libc}"


def cache_key(facts: Facts, patch: bytes) -> str:
    return f"{key_prefix(patch, facts.python, facts.libc)}-torch{facts.torch}-{facts.variant}"


def read_facts(env: Mapping[str, str]) -> Facts:
    code = "import json, torch; print(json.dumps([torch.__version__, torch.version.cuda]))"
    torch = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    if torch.returncode:
        last = (torch.stderr.strip().splitlines() or ["no message"])[-1]
        raise BuildError(f"torch does not import in this environment: {last}")
    version, cuda = json.loads(torch.stdout.splitlines()[-1])
    site = Path(sysconfig.get_path("purelib"))
    return Facts(version, cuda, python_tag(), libc_tag(), site, find_toolkit(env) if cuda else None)


def jobs(cores: int, memory: int) -> int:
    """Parallel compilations: one a core, but 2 GiB each, which torch's headers can take."""
    return max(1, min(cores, memory // 2**31))


def build_env(facts: Facts, env: Mapping[str, str], directory: Path, parallel: int) -> dict[str, str]:
    # The make that called us, and Horovod settings meant for training, must not reach the build.
    dropped = ("HOROVOD_", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    built = {name: value for name, value in env.items() if not name.startswith(dropped)}
    built |= {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)]),
        "MAKEFLAGS": f"-j{parallel}",
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # the bundled Gloo asks for CMake 2.8, which CMake 4 refuses
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
    }
    if facts.variant == "cuda" and facts.toolkit is not None:
        home = str(facts.toolkit.home)
        built |= {"CUDA_HOME": home, "HOROVOD_CUDA_HOME": home, "HOROVOD_GPU_OPERATIONS": "NCCL"}
        built |= nccl_env(facts.site / "nvidia" / "nccl", directory)
    return built


def nccl_env(nccl: Path, directory: Path) -> dict[str, str]:
    """Where pip put NCCL, if it did; otherwise CMake looks where the system keeps it."""
    library = nccl / "lib" / "libnccl.so.2"
    if not library.is_file():
        return {}
    # The package lacks the name without a version, by which linkers search. The folder ends up in the
    # library's search path, so it must not be one that others can write to, like /tmp.
    link = directory / "libnccl.so"
    link.unlink(missing_ok=True)
    link.symlink_to(library)
    return {
        "HOROVOD_NCCL_INCLUDE": str(nccl / "include"),
        "HOROVOD_NCCL_LIB": str(directory),
        "HOROVOD_NCCL_LINK": "SHARED",
    }


def useful_tail(log: str, count: int = 15) -> list[str]:
    """The lines of a build log that say what went wrong: from its first error on, or else the last."""
    noise = re.compile(r"^\s*$|^make(\[\d+\])?: |^\[ *\d+%\]|: warning: |^\s*\[end of output\]")
    lines = [line.rstrip() for line in log.splitlines() if not noise.search(line)]
    error = re.compile(r"\berror:|CMake Error|fatal|FAILED|DO NOT MATCH", re.IGNORECASE)
    first = next((i for i, line in enumerate(lines) if error.search(line)), max(0, len(lines) - count))
    return lines[first : first + count]


def run_logged(what: str, command: list[str], log: Path, env: Mapping[str, str], cwd: Path) -> None:
    with log.open("ab") as sink:
        start = sink.tell()
        result = subprocess.run(command, cwd=cwd, env=env, stdout=sink, stderr=subprocess.STDOUT, check=False)
    if result.returncode:
        tail = useful_tail(log.read_bytes()[start:].decode(errors="replace"))
        raise BuildError("\n".join([f"{what} failed:", *(f"  {line}" for line in tail), f"whole log: {log}"]))


def build_wheel(facts: Facts, directory: Path, work: Path) -> Path:
    """Download, check, patch and compile in `work`; the wheel is left there."""
    log = directory / "build.log"
    log.write_bytes(b"")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    env = build_env(facts, os.environ, directory, jobs(os.cpu_count() or 1, memory))
    pip = [sys.executable, "-m", "pip"]
    minutes = 4 if facts.variant == "cuda" else 2
    if facts.torch_cuda is not None and facts.variant == "cpu":
        say(f"horovod: torch has CUDA {facts.torch_cuda}, but no nvcc of it is here: building without NCCL")
    say(
        f"horovod: building {VERSION} for torch {facts.torch}, {facts.python}, {facts.variant}; "
        f"takes about {minutes} minutes on 2 cores, log in {log}"
    )
    requirements = work / "requirements.txt"
    requirements.write_text(f"horovod=={VERSION} --hash=sha256:{SDIST_SHA256}\n")
    options = ["--no-deps", "--no-build-isolation"]
    fetch = [
        *pip,
        "download",
        *options,
        "--no-binary",
        "horovod",
        "--require-hashes",
        "-r",
        requirements.name,
    ]
    run_logged("downloading Horovod", fetch, log, env, work)
    with tarfile.open(work / f"horovod-{VERSION}.tar.gz") as sdist:
        sdist.extraction_filter = lambda member, _: member  # its hash is pinned
        sdist.extractall(work)
    source = work / f"horovod-{VERSION}"
    # No fuzz: a patch that fits only roughly is for another source.
    patch = ["patch", "-p1", "--forward", "--batch", "--fuzz=0", "-i", str(PATCH)]
    run_logged(f"applying {PATCH.name}", patch, log, env, source)
    run_logged(
        "building Horovod", [*pip, "wheel", *options, "-v", "-w", str(work), str(source)], log, env, work
    )
    return next(work.glob("horovod-*.whl"))


def is_whole(wheel: Path) -> bool:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, OSError):
        return False


def fault(wheel: Path, variant: str) -> str | None:
    """Install a wheel; what is wrong with it, if anything."""
    if not is_whole(wheel):
        return "the wheel is not whole"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--force-reinstall"]
    installed = subprocess.run([*pip, str(wheel)], capture_output=True, text=True, check=False)
    if installed.returncode:
        return (installed.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
    wanted = ["gloo_built", *(["cuda_built", "nccl_built"] if variant == "cuda" else [])]
    code = "import horovod.torch as h\n" + "".join(f"assert h.{name}(), 'not {name}'\n" for name in wanted)
    tried = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    if tried.returncode:
        return (tried.stderr.strip().splitlines() or [f"exit status {tried.returncode}"])[-1]
    return None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file lock, so that a second build of the same wheel waits for the first and takes its wheel."""
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("horovod: waiting for another build of the same wheel")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def keep(wheel: Path, directory: Path) -> None:
    """Put a wheel into the cache in one step: whoever finds it there finds all of it."""
    copy = directory / "wheel.part"
    shutil.copyfile(wheel, copy)
    copy.replace(directory / wheel.name)


def provide(facts: Facts, directory: Path) -> None:
    """Install Horovod from the cache, or build it, install it, and only then put its wheel there."""
    for wheel in directory.glob("horovod-*.whl"):
        reason = fault(wheel, facts.variant)
        if reason is None:
            say(f"horovod: {VERSION} ({facts.variant}) installed from {directory}")
            return
        say(f"horovod: the cached wheel is broken and will be built again: {reason}")
        wheel.unlink()
    check_tools()
    started = time.monotonic()
    # Not in the cache directory: Horovod's CMake files use their own path as a regular expression, and
    # with the + of torch's version in it the library ends up outside the package.
    with tempfile.TemporaryDirectory(prefix="runner-horovod-") as work:
        wheel = build_wheel(facts, directory, Path(work))
        reason = fault(wheel, facts.variant)
        if reason is not None:
            raise BuildError(
                f"Horovod was built but does not work: {reason} (log: {directory / 'build.log'})"
            )
        keep(wheel, directory)
    say(f"horovod: built and installed in {time.monotonic() - started:.0f} s")


def main(arguments: list[str]) -> int:
    root = cache_root(os.environ, Path.home())
    try:
        if arguments == ["--check"]:
            check_venv()
            # With a wheel of an earlier build in the cache, most likely nothing is compiled.
            if not any(
                root.glob(key_prefix(PATCH.read_bytes(), python_tag(), libc_tag()) + "-*/horovod-*.whl")
            ):
                check_tools()
            return 0
        facts = read_facts(os.environ)
        directory = root / cache_key(facts, PATCH.read_bytes())
        directory.mkdir(parents=True, exist_ok=True)
        with locked(directory / "lock"):
            provide(facts, directory)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        print(f"error: {error.strerror}: {error.filename} (XDG_CACHE_HOME moves the cache)", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
