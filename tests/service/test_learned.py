"""What a service learned outlives it; files it cannot use are reported and ignored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from suffixspec_index.acceptance import AcceptanceModel
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_service.callers import Tenant
from suffixspec_service.config import ServiceConfig
from suffixspec_service.learned import MOST_NAMESPACES, Learned
from suffixspec_service.runtime import Runtime
from suffixspec_service.spaces import ModelIdentity, Space

MODEL = ModelIdentity("model", "tokenizer", 100)


def _runtime(path: Path) -> Runtime:
    return Runtime(
        ServiceConfig(), speculative=SpeculativeConfig(method="suffix"), learned_file=path
    )


def _talk(space: Space, rounds: int = 12) -> None:
    """A request that says the same again and again, and accepts what comes true."""
    text = np.array([5, 6, 7, 8, 9, 10, 11, 12] * 4, np.int32)
    for number in range(rounds):
        request = space.proposer.begin(f"s{number}", text[:16])
        at = 16
        while at < len(text):
            draft = space.proposer.propose(request)
            hits = 0
            while hits < len(draft) and at + hits < len(text):
                if draft.token_ids[hits] != text[at + hits]:
                    break
                hits += 1
            space.proposer.advance(request, text[at : at + hits + 1])
            at += hits + 1
        space.proposer.finish(request)


async def test_acceptance_outlives_the_service(tmp_path: Path) -> None:
    path = tmp_path / "data" / "learned"
    first = _runtime(path)
    ours, theirs = (first.spaces.of(Tenant(name), model=MODEL) for name in ("ours", "theirs"))
    _talk(ours)
    assert ours.index is not None
    assert theirs.index is not None
    learned = ours.index.model.cells.copy()
    fresh = AcceptanceModel.new().cells
    assert not np.array_equal(learned, fresh)
    await first.close()
    assert [file.name for file in path.parent.iterdir()] == ["learned"]

    second = _runtime(path)  # only one namespace comes back; the other is kept all the same
    again = second.spaces.of(Tenant("ours"), model=MODEL)
    assert again.index is not None
    assert np.array_equal(again.index.model.cells, learned)
    await second.close()
    third = _runtime(path)
    untouched = third.spaces.of(Tenant("theirs"), model=MODEL)
    assert untouched.index is not None
    assert np.array_equal(untouched.index.model.cells, fresh)
    await third.close()


@pytest.mark.parametrize("content", [b"", b"something else", b"SFXLEARN\x01\x00" + b"x" * 50])
async def test_a_file_that_cannot_be_used_is_reported(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "learned"
    path.write_bytes(content)
    with capture_logs() as logs:
        runtime = _runtime(path)
    assert [entry["event"] for entry in logs] == ["what was learned before is ignored"]
    assert str(path) in logs[0]["error"]
    space = runtime.spaces.of(Tenant("ours"), model=MODEL)
    _talk(space, 1)
    await runtime.close()
    assert _reads(path)  # and replaced by one that can


def _reads(path: Path) -> bool:
    with capture_logs() as logs:
        Learned(path)
    return not logs


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    learned = Learned(tmp_path / "file" / "learned")
    with capture_logs() as logs:
        learned.save()
    assert [entry["event"] for entry in logs] == ["what was learned is not kept"]


def test_namespaces_unused_for_longest_are_left_out(tmp_path: Path) -> None:
    learned = Learned(tmp_path / "learned")
    learned._pieces = {f"space/{n}/calibration": b"" for n in range(MOST_NAMESPACES + 3)}
    learned._pieces |= {"engine/x/rates": b"r"}
    learned.save()
    kept = Learned(tmp_path / "learned")._pieces
    assert next(iter(kept)) == "space/3/calibration"
    assert len(kept) == MOST_NAMESPACES + 1
    assert kept["engine/x/rates"] == b"r"
