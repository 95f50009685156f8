"""Which files a path means: one file, a list, a glob or a folder; local, or a URI of fsspec or pyarrow."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

Path = str | Sequence[str]
PACKED = (".gz", ".bz2", ".xz")


@dataclass(frozen=True)
class Files:
    """Files of one filesystem, in sorted order (a list of paths keeps its own order)."""

    system: Any  # an fsspec filesystem; pickles
    names: list[str]

    def open(self, name: str) -> Any:
        """A readable binary file; one that is `packed` is decompressed."""
        return self.system.open(name, "rb", compression="infer")

    def packed(self, name: str) -> bool:
        return name.endswith(PACKED)


def find(path: Path, endings: Sequence[str]) -> Files:
    """The files at `path`; of a folder, those at any depth whose names have one of the endings.

    Names that start with a dot or an underscore are left out of folders and globs (`_SUCCESS`, `.ipynb_checkpoints`).
    Raises ValueError where there is no file, with the nearest name.
    """
    paths = [path] if isinstance(path, str) else list(path)
    if not paths:
        raise ValueError("path=[]: no file is named")
    systems = [_system(str(one)) for one in paths]
    if len({type(system) for system, _ in systems}) > 1:
        raise ValueError(f"path={paths}: all files must lie in one filesystem")
    names = [name for system, inside in systems for name in _names(system, inside, endings)]
    if len(set(names)) < len(names):
        repeated = next(name for name, next_name in pairwise(sorted(names)) if name == next_name)
        raise ValueError(f"{repeated}: is there twice in path={paths}")
    return Files(systems[0][0], names)


def ending(name: str) -> str:
    """The ending that says the format: "csv" of data/a.csv and of data/a.csv.gz."""
    plain = PurePosixPath(name.removesuffix(next((end for end in PACKED if name.endswith(end)), "")))
    return plain.suffix[1:].lower()


def nearest(name: str, known: Sequence[str]) -> str:
    """ "; did you mean …?", or nothing where no name is near."""
    folded = {one.casefold(): one for one in known}
    close = difflib.get_close_matches(name.casefold(), list(folded), n=1)
    return f"; did you mean {folded[close[0]]}?" if close else ""


def reason(error: Exception) -> str:
    """An error of a filesystem or parser as one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def _system(path: str) -> tuple[Any, str]:
    """fsspec's filesystem and the path inside it; pyarrow's own where fsspec has no package for the protocol."""
    import fsspec

    try:
        return fsspec.url_to_fs(path)
    except ImportError as missing:
        from fsspec.implementations.arrow import ArrowFSWrapper
        from pyarrow import ArrowInvalid, fs

        try:
            system, inside = fs.FileSystem.from_uri(path)
        except ArrowInvalid:
            raise ValueError(f"{path}: {reason(missing)}") from missing
        return ArrowFSWrapper(system), inside
    except ValueError as error:
        raise ValueError(f"{path}: {reason(error)}") from error


def _names(system: Any, inside: str, endings: Sequence[str]) -> list[str]:
    from fsspec.core import has_magic

    try:
        if has_magic(inside) and not system.exists(inside):
            found = [
                name for name in sorted(system.glob(inside)) if not _hidden(name, "") and system.isfile(name)
            ]
        elif system.isdir(inside):
            found = [name for name in sorted(system.find(inside)) if not _hidden(name, inside)]
            found = [name for name in found if ending(name) in endings]
            if not found:
                raise ValueError(f"{inside}: no file in this folder ends in .{', .'.join(endings)}")
        else:
            found = [inside] if system.isfile(inside) else []
    except OSError as error:
        raise ValueError(f"{inside}: cannot be read: {reason(error)}") from error
    if not found:
        raise ValueError(f"{inside}: no such file{_nearest_file(system, inside)}")
    return found


def _hidden(name: str, folder: str) -> bool:
    own = name.removeprefix(folder) if folder else name.rpartition("/")[2]
    return any(part.startswith((".", "_")) for part in own.split("/") if part)


def _nearest_file(system: Any, inside: str) -> str:
    folder = inside.rpartition("/")[0]
    try:
        known = [str(name).rpartition("/")[2] for name in system.ls(folder, detail=False)]
    except OSError:
        return f" ({folder} is missing too)"
    own = inside.rpartition("/")[2]
    if own in known:
        return " (a link to nothing, or no plain file)"
    close = nearest(own, known)
    return close or f"; {folder} has {', '.join(sorted(known)[:5]) or 'no files'}"
