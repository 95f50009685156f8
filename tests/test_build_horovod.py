"""The build of Horovod: what it depends on, what it refuses, what it takes from the cache. Nothing is built."""

import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tools import build_horovod as build
from tools import build_needs as needs

CPU = build.Facts("2.13.0+cpu", None, "cpython-311-x86_64-linux-gnu", "glibc2.36", Path("/site"), None)
CUDA = replace(CPU, torch="2.13.0+cu130", torch_cuda="13.0", toolkit=needs.Cuda(Path("/cuda"), 13))


def whole_wheel(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("horovod/torch/mpi_lib_v2.so", b"x" * 5000)
    return path


def test_key_names_everything_the_wheel_depends_on():
    assert build.cache_key(CPU, b"patch") == (
        "0.28.1-a4895eb44afc-cpython-311-x86_64-linux-gnu-glibc2.36-torch2.13.0+cpu-cpu"
    )


@pytest.mark.parametrize(
    "other",
    [
        replace(CPU, torch="2.13.0"),
        replace(CPU, python="cpython-312-x86_64-linux-gnu"),
        replace(CPU, libc="glibc2.31"),
        CUDA,
        replace(CUDA, toolkit=None),
    ],
)
def test_key_differs_with_each_fact(other):
    assert build.cache_key(other, b"patch") != build.cache_key(CPU, b"patch")


def test_key_differs_with_the_patch():
    assert build.cache_key(CPU, b"patch") != build.cache_key(CPU, b"other")


def test_cache_lies_under_xdg_cache_home_if_that_is_absolute():
    home = Path("/home/me")
    assert build.cache_root({"XDG_CACHE_HOME": "/big"}, home) == Path("/big/runner/horovod")
    assert build.cache_root({}, home) == Path("/home/me/.cache/runner/horovod")
    assert build.cache_root({"XDG_CACHE_HOME": "relative"}, home) == Path("/home/me/.cache/runner/horovod")


@pytest.mark.parametrize(
    ("facts", "variant"),
    [
        (CPU, "cpu"),
        (CUDA, "cuda"),
        (replace(CPU, toolkit=needs.Cuda(Path("/cuda"), 13)), "cpu"),  # an nvcc, but torch for the CPU
        (replace(CUDA, toolkit=None), "cpu"),  # torch for CUDA, but no nvcc
        (replace(CUDA, toolkit=needs.Cuda(Path("/cuda"), 12)), "cpu"),  # an nvcc of another CUDA
    ],
)
def test_cuda_only_where_torch_and_nvcc_agree(facts, variant):
    assert facts.variant == variant


def test_toolkit_is_the_one_that_nvcc_names_not_the_folder_of_a_wrapper():
    version = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 13.0, V13.0.88\n"
    dry_run = "#$ _HERE_=/usr/local/cuda-13.0/bin\n#$ TOP=/usr/local/cuda-13.0/bin/..\n"
    assert needs.parse_toolkit(version, dry_run) == needs.Cuda(Path("/usr/local/cuda-13.0"), 13)
    assert needs.parse_toolkit("", "") is None


def test_toolkit_is_none_where_nvcc_is_there_but_fails(tmp_path):
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\nexit 1\n")
    nvcc.chmod(0o755)
    assert needs.run_nvcc(nvcc) is None


def test_cpu_build_environment(tmp_path):
    outer = {"PATH": "/bin", "MAKEFLAGS": "w -j8 --jobserver-auth=3,4", "MAKELEVEL": "1"}
    env = build.build_env(CPU, outer | {"HOROVOD_GPU_OPERATIONS": "NCCL"}, tmp_path, 2)
    assert env == {
        "PATH": f"{Path(sys.executable).parent}:/bin",
        "MAKEFLAGS": "-j2",
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
    }


def test_cuda_build_takes_nccl_from_the_environment(tmp_path):
    library = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.touch()
    env = build.build_env(replace(CUDA, site=tmp_path), {"PATH": "/bin"}, tmp_path, 2)
    assert env["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert env["HOROVOD_CUDA_HOME"] == "/cuda"
    assert env["HOROVOD_NCCL_INCLUDE"] == str(tmp_path / "nvidia" / "nccl" / "include")
    assert (Path(env["HOROVOD_NCCL_LIB"]) / "libnccl.so").resolve() == library.resolve()


@pytest.mark.parametrize(
    ("cores", "memory", "expected"), [(2, 24 << 30, 2), (64, 16 << 30, 8), (4, 1 << 30, 1), (1, 64 << 30, 1)]
)
def test_jobs_fit_cores_and_memory(cores, memory, expected):
    assert build.jobs(cores, memory) == expected


def headers(folder: Path) -> Path:
    (folder / "Python.h").touch()
    return folder


def test_nothing_is_missing_where_all_tools_are(tmp_path):
    assert needs.missing_tools(lambda command: f"/bin/{command}", {}, headers(tmp_path)) == []


def test_missing_tools_are_one_line_that_names_the_packages(tmp_path):
    there = {"cc", "make"}
    missing = needs.missing_tools(
        lambda command: command if command in there else None, {}, headers(tmp_path)
    )
    assert needs.missing_line(missing) == (
        "building Horovod needs a C++ compiler with C++20 (GCC 10 or newer), GNU patch: "
        "`apt-get install g++ patch` on Debian, or your system's package"
    )


def test_missing_python_headers_are_named(tmp_path):
    version = "{}.{}".format(*sys.version_info)
    missing = needs.missing_tools(lambda command: command, {}, tmp_path)
    assert missing == [(f"python{version}-dev", f"the headers of Python {version}")]


def test_a_compiler_named_by_cxx_is_the_one_that_counts(tmp_path):
    missing = needs.missing_tools(
        lambda command: None if command == "icpx" else command, {"CXX": "icpx -v"}, headers(tmp_path)
    )
    assert [debian for debian, _ in missing] == ["g++"]


def test_check_ends_with_one_line_and_status_1_without_a_compiler(tmp_path):
    root = Path(build.__file__).parent.parent
    env = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "tools.build_horovod", "--check"]
    result = subprocess.run(command, env=env, cwd=root, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: building Horovod needs a C++ compiler")
    assert result.stderr.count("\n") == 1


def test_a_whole_wheel_is_whole(tmp_path):
    assert build.is_whole(whole_wheel(tmp_path / "a.whl"))


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "absent"])
def test_a_damaged_wheel_is_found_out(tmp_path, damage):
    wheel = whole_wheel(tmp_path / "a.whl")
    content = bytearray(wheel.read_bytes())
    if damage == "truncated":
        wheel.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        content[2000] ^= 1
        wheel.write_bytes(content)
    elif damage == "empty":
        wheel.write_bytes(b"")
    else:
        wheel.unlink()
    assert not build.is_whole(wheel)


def test_a_broken_cached_wheel_is_built_again_and_a_good_one_is_not(tmp_path, monkeypatch, capsys):
    cache = tmp_path / "cache"
    cache.mkdir()
    name = "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    (cache / name).write_bytes(b"broken")
    built = []

    def fake_build(facts, directory, work):
        built.append(facts)
        return whole_wheel(work / name)

    monkeypatch.setattr(build, "build_wheel", fake_build)
    monkeypatch.setattr(build, "check_tools", lambda: None)
    monkeypatch.setattr(build, "fault", lambda wheel, variant: None if build.is_whole(wheel) else "not whole")
    build.provide(CPU, cache)
    assert len(built) == 1
    assert build.is_whole(cache / name)
    assert "broken and will be built again: not whole" in capsys.readouterr().out
    build.provide(CPU, cache)
    assert len(built) == 1
    assert [path.name for path in cache.iterdir()] == [name]


def test_a_wheel_that_does_not_work_never_reaches_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(
        build, "build_wheel", lambda facts, directory, work: whole_wheel(work / "horovod-1.whl")
    )
    monkeypatch.setattr(build, "check_tools", lambda: None)
    monkeypatch.setattr(build, "fault", lambda wheel, variant: "ImportError: undefined symbol")
    with pytest.raises(build.BuildError, match="does not work: ImportError: undefined symbol"):
        build.provide(CPU, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_tail_of_a_log_starts_at_its_first_error():
    noise = [f"[ {i}%] Building CXX object {i}.o" for i in range(50)]
    log = "\n".join(
        [*noise, "a.cc:1:2: warning: unused", "a.cc:3:4: error: no type", "", "  int x", "make[2]: *** [a.o]"]
    )
    assert build.useful_tail(log) == ["a.cc:3:4: error: no type", "  int x"]


def test_tail_of_a_log_without_an_error_is_its_last_lines():
    assert build.useful_tail("\n".join(str(i) for i in range(40)), 3) == ["37", "38", "39"]


def test_a_failing_step_says_what_why_and_where(tmp_path):
    log = tmp_path / "build.log"
    log.write_text("an earlier step's error: not this one\n")
    command = [sys.executable, "-c", "print('fatal: nothing works'); raise SystemExit(3)"]
    with pytest.raises(build.BuildError) as raised:
        build.run_logged("building Horovod", command, log, os.environ, tmp_path)
    assert str(raised.value) == f"building Horovod failed:\n  fatal: nothing works\nwhole log: {log}"


def test_the_patch_names_no_time_and_says_what_it_is_for():
    text = build.PATCH.read_text()
    preamble = text.split("\ndiff ")[0]
    assert "C++20" in preamble
    assert not any("\t" in line for line in text.splitlines() if line.startswith(("--- ", "+++ ")))
