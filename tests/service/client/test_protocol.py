from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from suffixspec_index.errors import TokenError
from suffixspec_service.client.options import ClientOptions
from suffixspec_service.client.protocol import Call, Protocol
from suffixspec_service.client.requests import ClientRequest
from suffixspec_service.rpc.generated import drafting_pb2 as pb

VOCAB = 100


def array(*ids: float, dtype: type[Any] = np.int32) -> Any:
    return np.array(ids, dtype)


def client() -> tuple[Protocol, list[ClientRequest]]:
    """A client with three requests, begun by hand."""
    protocol = Protocol(ClientOptions(address="a:1", model="m", tokenizer="t", vocab_size=VOCAB))
    requests = [ClientRequest(n, "s", array(1)) for n in (1, 2, 3)]
    protocol._requests = {request.number: request for request in requests}
    return protocol, requests


def sent(rows: list[Any]) -> tuple[pb.StepRequest, list[list[int]]]:
    """What a step sends for gained tokens, and what the client then holds."""
    protocol, requests = client()
    call = next(protocol.step(zip(requests, rows, strict=True), []))
    assert isinstance(call, Call)
    return call.message, [request.output.tolist() for request in requests]


@pytest.mark.parametrize(
    "rows",
    [
        [[5, 6], [], [7]],
        [array(5, 6), array(), array(7)],
        [array(5, 6, dtype=np.int64), array(), [7]],
        [(5, 6), range(0), array(0, 7)[1:]],
        [[np.int64(5), 6], [], array(7, 0)[:1]],
    ],
)
def test_gained_tokens_in_any_form(rows: list[Any]) -> None:
    message, held = sent(rows)
    assert np.frombuffer(message.token_ids, "<i4").tolist() == [5, 6, 7]
    assert list(message.advanced_lengths) == [2, 0, 1]
    assert held == [[5, 6], [], [7]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[5, 6], [1, VOCAB], [7]], "token_ids: position 1 is 100"),
        ([array(5), array(-1), array(7)], "token_ids: position 0 is -1, a negative"),
        ([[5], [True], [7]], "position 0 is True, not an integer"),
        ([[5], [[6]], [7]], "must be one-dimensional"),
        ([[[5]], [[6]], [[7]]], "must be one-dimensional"),
        ([[5], [6.5], [7]], "position 0 is 6.5, not an integer"),
        ([array(5), array(6.5, dtype=np.float32), array(7)], "not an integer"),
    ],
)
def test_a_wrong_token_is_named_by_its_place_in_its_own_row(rows: list[Any], message: str) -> None:
    protocol, requests = client()
    with pytest.raises(TokenError, match=message):
        next(protocol.step(zip(requests, rows, strict=True), []))
    assert all(not len(request.output) for request in requests)
