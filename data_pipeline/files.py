"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data_pipeline.errors import InputError


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Failures of the disk that do not say where they happened say ``path``."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` to write to; renamed into place when all went well."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with naming(path):
            yield temporary
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replace_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside ``path`` to fill; renamed into place when all went well.

    Raises:
        InputError: ``path`` exists and is not an empty folder, or cannot be made.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} exists: remove it or name another folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise InputError(f"{path} cannot be made: {error.strerror}; name another") from error
    try:
        temporary.chmod(0o755)
        with naming(path):
            yield temporary
        try:
            temporary.replace(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise InputError(f"{path} exists: remove it or name another folder") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def cache_dir() -> Path:
    """Where downloads and ingested datasets are kept: XDG_CACHE_HOME/bnmf, or ~/.cache/bnmf."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "bnmf"
