from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from suffixspec_index.proposers.suffix import SuffixProposer
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_service.app import create_app
from suffixspec_service.config import ServiceConfig
from suffixspec_service.drafting import DraftingConfig
from suffixspec_service.runtime import Runtime
from tests.service.grpc_service import MODEL, VOCAB, phrases

KEYS = ("anne:sk-suffixspec-anne-0123456789", "bob:sk-suffixspec-bob-0123456789")


class Caller:
    """Calls the routes with a key; remembers the lease."""

    def __init__(self, client: TestClient, key: str | None = None) -> None:
        self._client = client
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self.lease = ""

    def post(self, call: str, status: int = 200, **body: Any) -> Any:
        if self.lease and call != "open":
            body.setdefault("lease", self.lease)
        answer = self._client.post(f"/v1/speculation/{call}", json=body, headers=self._headers)
        assert answer.status_code == status, answer.text
        return answer.json()

    def open(self) -> Caller:
        self.lease = self.post("open", **MODEL)["lease"]
        return self


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    runtime = Runtime(
        ServiceConfig(port=0, api_keys=KEYS),
        drafting_config=DraftingConfig(max_requests=3, max_context_tokens=400),
    )
    yield runtime
    runtime.drafting.close_all()
    runtime.index_pool.shutdown()


@pytest.fixture
def client(runtime: Runtime) -> TestClient:
    return TestClient(create_app(runtime))


@pytest.fixture
def anne(client: TestClient) -> Caller:
    return Caller(client, "sk-suffixspec-anne-0123456789").open()


def test_drafts_are_those_of_a_proposer_of_ones_own(anne: Caller, runtime: Runtime) -> None:
    own = SuffixProposer(SpeculativeConfig(), vocab_size=VOCAB)
    text = phrases(1, 300).tolist()
    begun = anne.post("begin", requests=[{"request": 1, "session": "s", "prompt": text[:100]}])
    assert begun == {"context_tokens": [100]}
    handle = own.begin("s", text[:100])
    at, accepted = 100, 0
    gained: list[int] = []
    while at < 300:
        advance = [{"request": 1, "token_ids": gained}]
        answer = anne.post("step", advance=advance, propose=[{"request": 1, "limit": 6}])
        (draft,) = answer["drafts"]
        own.advance(handle, gained)
        wanted = own.propose(handle, 6)
        assert draft["token_ids"] == wanted.token_ids.tolist()
        assert draft["parents"] == wanted.parents.tolist()
        assert draft["match_len"] == wanted.match_len
        assert set(draft["sources"]) <= {"session", "global"}
        good = len(wanted.accepted_by(text[at:]))
        accepted += good
        gained = text[at : at + good + 1]
        at += len(gained)
    anne.post("step", advance=[{"request": 1, "token_ids": gained}])
    (counts,) = anne.post("finish", requests=[1])["requests"]
    assert (counts["accepted"], counts["output_tokens"]) == (accepted, 200)
    assert accepted > 0
    found = anne.post("statistics")
    assert found["index"]["tokens"] == 200
    assert found["acceptance"]["accepted"] == accepted
    more = {"request": 2, "session": "s", "prompt": [7], "base": 300}
    assert anne.post("begin", requests=[more]) == {"context_tokens": [301]}
    assert anne.post("ingest", sequences=[text]) == {"tokens": 300}
    anne.post("purge")
    assert anne.post("statistics")["index"]["tokens"] == 0
    anne.post("end_sessions", sessions=["s"])
    assert anne.post("keep_alive") == {"ttl_seconds": 60}
    assert anne.post("close") == {"dropped_requests": 1}
    assert runtime.drafting.open_requests == runtime.spaces.live_requests == 0


GOOD = {"request": 1, "session": "s", "prompt": [1, 2]}
BAD: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "no model": ("open", {"tokenizer": "t", "vocab_size": 9}, 400, "model"),
    "no vocabulary": ("open", MODEL | {"vocab_size": 0}, 400, "vocab_size"),
    "unknown field": ("open", MODEL | {"tenant": "bob"}, 400, "tenant"),
    "no lease": ("step", {"lease": "x"}, 404, "lease"),
    "empty prompt": ("begin", {"requests": [GOOD | {"prompt": []}]}, 400, "prompt"),
    "text": ("begin", {"requests": [GOOD | {"prompt": "text"}]}, 400, "prompt"),
    "fraction": ("begin", {"requests": [GOOD | {"prompt": [1.5]}]}, 400, "prompt"),
    "boolean": ("begin", {"requests": [GOOD | {"prompt": [True]}]}, 400, "prompt"),
    "negative": ("begin", {"requests": [GOOD | {"prompt": [-1]}]}, 400, "prompt"),
    "foreign": ("begin", {"requests": [GOOD | {"prompt": [VOCAB]}]}, 400, "vocabulary"),
    "long": ("begin", {"requests": [GOOD | {"prompt": [1] * 401}]}, 413, "401"),
    "out of step": ("begin", {"requests": [GOOD | {"base": 9}]}, 400, "base"),
    "too many": (
        "begin",
        {"requests": [GOOD | {"request": n} for n in range(4)]},
        429,
        "requests",
    ),
    "unknown request": ("step", {"propose": [{"request": 5}]}, 404, "request 5"),
    "finish unknown": ("finish", {"requests": [5]}, 404, "request 5"),
    "negative limit": ("step", {"propose": [{"request": 1, "limit": -1}]}, 400, "limit"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_leaves_nothing_behind(anne: Caller, runtime: Runtime, case: str) -> None:
    call, body, status, text = BAD[case]
    error = anne.post(call, status, **body)["error"]
    assert text in f"{error['message']} {error['param']}"
    assert runtime.drafting.open_requests == runtime.spaces.live_requests == 0
    assert runtime.drafting.open_leases == 1


def test_who_may(client: TestClient, anne: Caller) -> None:
    for key in (None, "sk-wrong"):
        Caller(client, key).post("open", 401, **MODEL)
    bob = Caller(client, "sk-suffixspec-bob-0123456789")
    bob.lease = anne.lease
    for call in ("keep_alive", "statistics", "purge", "close"):
        bob.post(call, 404)
    anne.post("keep_alive")
