"""From timed steps to a file, and an endpoint timed over real sockets."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from suffixspec_index.errors import ConfigError, InputError
from suffixspec_traces.cost import load_cost_model
from suffixspec_traces.cost.endpoint import EndpointOptions, measure_endpoint
from suffixspec_traces.cost.measured import TimedStep, cost_from_steps, write_cost_model
from tests.threads import ended

PROVENANCE = "made up for this test, no machine involved"


def truth(tokens: int, requests: int, context: int) -> float:
    return 5.0 + 0.5 * tokens + 0.7 * (requests - 1) + 0.002 * context * requests


def timed() -> list[TimedStep]:
    shapes = [(n, 1, 100) for n in (1, 2, 4, 8, 16)]
    shapes += [(n, 1, 1100) for n in (1, 4)] + [(n, 4, 100) for n in (4, 8, 16)]
    return [TimedStep(t, r, c, truth(t, r, c)) for t, r, c in shapes]


def test_the_terms_are_found() -> None:
    model = cost_from_steps(timed(), name="made-up", provenance=PROVENANCE)
    assert list(model.points) == [1, 2, 4, 8, 16]
    assert model.ms_per_1000_context_tokens == pytest.approx(2.0)
    assert model.ms_per_further_request == pytest.approx(0.7 + 0.2, abs=0.01)  # 100 of cache
    for tokens, requests, context in ((3, 1, 500), (8, 4, 100), (16, 2, 2000)):
        found = float(model.step_ms(tokens, requests * context, requests))
        assert found == pytest.approx(truth(tokens, requests, context), rel=0.01)


def test_one_size_is_no_cost_model() -> None:
    with pytest.raises(ConfigError, match="two sizes"):
        cost_from_steps([TimedStep(1, 1, 0, 3.0)], name="x", provenance=PROVENANCE)


def test_the_file_reads_back_and_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    model = cost_from_steps(timed(), name="made-up", provenance=PROVENANCE)
    path = tmp_path / "mine.yaml"
    write_cost_model(path, model)
    assert load_cost_model(str(path)) == model
    assert [p.name for p in tmp_path.iterdir()] == ["mine.yaml"]
    with pytest.raises(InputError, match="cannot be written"):
        write_cost_model(tmp_path / "nowhere" / "mine.yaml", model)


@contextmanager
def endpoint(
    step_ms: float, per_stream_ms: float, *, gather: int = 1, longest: int = 1 << 20
) -> Iterator[str]:
    """An HTTP server that streams completions; a step is slower the more streams there are."""
    running = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal running
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = int(head.split("content-length:")[1].split("\r\n")[0])
        body = json.loads(await reader.readexactly(size))
        words = len(body["prompt"].split())
        if words > longest:
            writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 8\r\n"
                         b"connection: close\r\n\r\ntoo long")  # fmt: skip
            await writer.drain()
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                     b"connection: close\r\n\r\n")  # fmt: skip
        running += 1
        try:
            for _ in range(body["max_tokens"] // gather):
                pause = step_ms + per_stream_ms * (running - 1) + 0.002 * words
                await asyncio.sleep(pause / 1000)
                writer.write(b'data: {"choices": [{"text": "x"}]}\n\n')
                await writer.drain()
            usage = {"prompt_tokens": words, "completion_tokens": body["max_tokens"]}
            writer.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
            writer.write(b"data: [DONE]\n\n")
            await writer.drain()
        finally:
            running -= 1
            writer.close()

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
    thread = threading.Thread(daemon=True, target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:

        async def end() -> None:
            server.close()
            await server.wait_closed()

        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        ended([thread])
        loop.close()


def options(url: str, **changes: object) -> EndpointOptions:
    values: dict[str, object] = {
        "url": url, "model": "m", "concurrencies": (1, 4), "tokens": 16, "long_prompt_words": 4000,
    }  # fmt: skip
    return EndpointOptions(**(values | changes))  # type: ignore[arg-type]


def test_an_endpoint_is_timed_by_its_streams() -> None:
    with endpoint(10.0, 10.0) as url:
        times = measure_endpoint(options(url))
    assert times is not None
    assert times.step_ms[1] >= 10.0
    assert times.step_ms[4] > 2 * times.step_ms[1]
    assert times.ms_per_1000_context_tokens > 0.5
    assert times.prompt_tokens == 200
    assert times.tokens_per_piece == pytest.approx(1.0)


def test_a_short_context_is_measured_with_a_shorter_prompt() -> None:
    with endpoint(5.0, 0.0, longest=1200) as url:
        times = measure_endpoint(options(url, tokens=64))
    assert times is not None
    assert times.ms_per_1000_context_tokens > 0.5
    with endpoint(1.0, 0.0, longest=300) as url:
        times = measure_endpoint(options(url))
    assert times is not None
    assert times.ms_per_1000_context_tokens == 0.0
    with endpoint(1.0, 0.0, longest=100) as url, pytest.raises(InputError, match="too long"):
        measure_endpoint(options(url))


def test_an_endpoint_that_gathers_tokens_shows() -> None:
    with endpoint(1.0, 0.0, gather=2) as url:
        times = measure_endpoint(options(url, long_prompt_words=0))
    assert times is not None
    assert times.tokens_per_piece == pytest.approx(2.0)


def test_what_cannot_be_measured_is_said() -> None:
    with pytest.raises(InputError, match="completions"):
        measure_endpoint(options("http://127.0.0.1:9/v1"))
    with endpoint(1.0, 0.0, gather=8) as url, pytest.raises(InputError, match="too few"):
        measure_endpoint(options(url))
    for changes in ({"url": "ftp://x"}, {"concurrencies": (2, 4)}, {"tokens": 2}):
        with pytest.raises(ConfigError):
            options(**({"url": "http://x"} | changes))
    stop = threading.Event()
    stop.set()
    assert measure_endpoint(options("http://127.0.0.1:9/v1"), stop=stop) is None
