"""Recent sessions: bounded, and text only where it may be kept."""

from __future__ import annotations

import random

from suffixspec_service.monitor import Monitor, MonitorConfig, Piece
from suffixspec_service.monitor.sessions import RecentSessions, SessionLimits
from tests.service.monitor.recorded import record, spoken


def test_text_is_kept_only_on_wish() -> None:
    for keep in (False, True):
        monitor = Monitor(MonitorConfig(keep_text=keep))
        monitor.observe(spoken("the quick brown fox"))
        (summary,) = monitor.sessions()
        session = monitor.session("local", "s1")
        assert session is not None
        assert summary["has_text"] is keep
        (request,) = session["kept_requests"]
        if keep:
            accepted = [p[0] for p in request["pieces"] if p[2]]
            assert "".join(accepted) == "the quick brown fox "
            assert ["wrong ", "global", False, 5, 1] in request["pieces"]
        else:
            assert request["pieces"] is None
            assert "quick" not in repr(vars(monitor))


def test_tenants_are_apart() -> None:
    monitor = Monitor(MonitorConfig(keep_text=True))
    monitor.observe(spoken("secret", tenant="a"))
    monitor.observe(spoken("public", tenant="b"))
    assert [s["tenant"] for s in monitor.sessions("b")] == ["b"]
    assert len(monitor.sessions()) == 2
    monitor.forget_tenant("a")
    assert monitor.session("a", "s1") is None
    assert monitor.session("b", "s1") is not None


def test_plain_tuples_are_pieces_too() -> None:
    kept = RecentSessions(keep_text=True)
    kept.add(record(pieces=(("a", "none", True), Piece("b"))), 1.0)
    session = kept.get("local", "s1")
    assert session is not None
    pieces = session["kept_requests"][0]["pieces"]
    assert pieces == [["a", "none", True, 0, -1], ["b", "none", True, 0, -1]]


def test_everything_is_bounded() -> None:
    limits = SessionLimits(sessions=10, per_tenant=4, requests=3, pieces=5, chars=400)
    kept = RecentSessions(limits, keep_text=True)
    rng = random.Random(0)
    for number in range(500):
        pieces = tuple(Piece("x" * rng.randint(0, 30)) for _ in range(rng.randint(0, 9)))
        tenant = f"t{rng.randint(0, 5)}"
        kept.add(record(tenant=tenant, session_id=f"s{rng.randint(0, 9)}", pieces=pieces), number)
        summaries = kept.summaries(None)
        assert len(summaries) == len(kept) <= 10
        held = [kept.get(s["tenant"], s["session_id"]) for s in summaries]
        requests = [r for s in held if s is not None for r in s["kept_requests"]]
        chars = sum(len(p[0]) for r in requests for p in r["pieces"])
        assert chars == kept.chars
        assert chars <= 400 or len(kept) == 1
        assert all(
            len(r["pieces"]) <= 5 <= r["pieces_total"] or r["pieces_total"] < 5 for r in requests
        )
        assert all(len(s["kept_requests"]) <= 3 for s in held if s is not None)
        for name in {s["tenant"] for s in summaries}:
            assert sum(s["tenant"] == name for s in summaries) <= 4
        assert summaries[0]["tenant"] == tenant  # the latest is first, and never the one to go
