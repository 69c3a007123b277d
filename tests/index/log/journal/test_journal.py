"""The journal: the contract, and what is particular to files."""

from __future__ import annotations

from pathlib import Path

import pytest

from suffixspec_index.log import open_log
from tests.index.log.contract import LogContract, OpenLog


class TestJournalLog(LogContract):
    @pytest.fixture
    def open_log(self, tmp_path: Path) -> OpenLog:
        return lambda **options: open_log(f"journal:{tmp_path / 'journal'}", **options)


class TestDurableJournalLog(LogContract):
    @pytest.fixture
    def open_log(self, tmp_path: Path) -> OpenLog:
        url = f"journal:{tmp_path / 'journal'}?fsync=always&segment_bytes=4KiB&max_bytes=1GiB"
        return lambda **options: open_log(url, **options)
