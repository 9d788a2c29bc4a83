"""Shared fixtures: an isolated cache, a small made set of ratings, the command line in-process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bnmf.cli.main import run


@pytest.fixture(autouse=True)
def _isolated(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache, data folder or mirror."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("BNMF_DATA_DIR", raising=False)
    monkeypatch.delenv("BNMF_MIRROR", raising=False)


_GIVEN = os.environ.get("BNMF_DATA_DIR")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real ratings, or a skip with its reason."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(_GIVEN) if _GIVEN else beside
    if not folder.is_dir():
        pytest.skip("no real ratings: set BNMF_DATA_DIR to a folder that holds them")
    return folder


@pytest.fixture
def ratings_csv(tmp_path: Path) -> Path:
    """70 users x 50 items, 1,400 ratings in half stars from a rank-2 model; string user ids."""
    rng = np.random.default_rng(5)
    rate = rng.gamma(2.0, 0.6, (70, 2)) @ rng.gamma(2.0, 0.6, (2, 50))
    cells = np.sort(rng.choice(70 * 50, 1400, replace=False))
    stars = np.clip(np.round(2 * rng.poisson(4 * rate.flat[cells]) / 4) / 2, 0.5, 5.0)
    path = tmp_path / "small.csv"
    lines = ["user,item,rating,timestamp"]
    for at, (cell, star) in enumerate(zip(cells, stars, strict=True)):
        lines.append(f"u{cell // 50},{100 + cell % 50},{star},{1_000_000 + at}")
    path.write_text("\n".join(lines) + "\n")
    return path


class Outcome:
    """What one command printed and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def refused(self, *words: str) -> None:
        """Exit code 2 and exactly one line on stderr, which has all the words."""
        lines = [line for line in self.err.splitlines() if not line.startswith("{")]
        assert self.code == 2, (self.code, self.err)
        assert len(lines) == 1 and lines[0].startswith("error: "), self.err
        for word in words:
            assert word in lines[0], (word, lines[0])


Command = Callable[..., Outcome]


@pytest.fixture
def bnmf(capfd: pytest.CaptureFixture[str]) -> Command:
    """`bnmf ARGUMENTS` in this process."""

    def command(*arguments: object) -> Outcome:
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        return Outcome(code, *capfd.readouterr())

    return command
