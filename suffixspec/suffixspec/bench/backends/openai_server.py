"""Backend: any server with OpenAI's API, over streaming HTTP."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from suffixspec.bench.backends.base import Sampling
from suffixspec.bench.results import RequestResult
from suffixspec.bench.speculation import SpeculationFigures, from_prometheus
from suffixspec.bench.workload import BenchRequest
from suffixspec_index.errors import ConfigError, InputError, MissingDependencyError

if TYPE_CHECKING:
    import httpx

SESSION_HEADER = "X-Session-Id"
"""Names a request's conversation for our own service; other servers ignore it."""

_DATA = "data:"


class OpenAIBackend:
    """Requests go to ``base_url`` + ``endpoint``; made by :meth:`connect`.

    A path with ``chat`` in it is given messages, any other a prompt: token ids where they are
    known, so that every server computes the same tokens.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        base_url: str,
        endpoint: str,
        model: str,
        sampling: Sampling,
        extra_body: Mapping[str, Any],
    ) -> None:
        self._client, self._base_url, self._path = client, base_url, endpoint
        self._body = {"model": model, **_sampling_body(sampling), **extra_body}
        self._chat = "chat" in endpoint
        self.model = model

    @classmethod
    async def connect(
        cls,
        base_url: str,
        *,
        endpoint: str = "/v1/completions",
        model: str | None = None,
        sampling: Sampling | None = None,
        headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        insecure: bool = False,
    ) -> OpenAIBackend:
        """Make sure that a server answers, and learn its model's name unless it is given.

        Args:
            headers: sent with every request. Without ``Authorization``, the environment variable
                ``OPENAI_API_KEY`` is sent as a bearer token where it is set.
            insecure: do not check the server's certificate.

        Raises:
            ConfigError: no server answers there, or it tells no model.
            MissingDependencyError: httpx is not installed.
        """
        try:
            import httpx
        except ImportError as error:
            raise MissingDependencyError(
                "a server is benchmarked with httpx; run: pip install 'suffixspec[service]'"
            ) from error
        sent = {k.lower(): v for k, v in (headers or {}).items()}
        if "authorization" not in sent and os.environ.get("OPENAI_API_KEY"):
            sent["authorization"] = f"Bearer {os.environ['OPENAI_API_KEY']}"
        client = httpx.AsyncClient(
            headers=sent,
            timeout=httpx.Timeout(None, connect=30.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            verify=not insecure,
        )
        base_url = base_url.rstrip("/").removesuffix("/v1")
        try:
            served = await _served_model(client, base_url)
        except (httpx.HTTPError, ValueError) as error:
            if model is None or isinstance(error, httpx.ConnectError):
                await client.aclose()
                raise ConfigError(
                    f"--base-url: {base_url} does not answer as an OpenAI server ({error}); "
                    "start it, or correct the address"
                ) from None
            served = model  # a server without /v1/models
        chosen = Sampling() if sampling is None else sampling
        return cls(client, base_url, endpoint, model or served, chosen, extra_body or {})

    async def send(self, request: BenchRequest) -> RequestResult:
        """See :class:`Backend`."""
        import httpx

        body = self._request_body(request)
        result = RequestResult(request, time.perf_counter())
        try:
            async with self._client.stream(
                "POST",
                self._base_url + self._path,
                json=body,
                headers={SESSION_HEADER: request.session},
            ) as response:
                if response.status_code != 200:
                    text = (await response.aread()).decode("utf-8", "replace")
                    result.error = f"HTTP {response.status_code}: {text[:500]}"
                else:
                    async for line in response.aiter_lines():
                        self._read(line, result)
        except (httpx.HTTPError, ValueError) as error:
            result.error = f"{type(error).__name__}: {error}"
        result.ended = time.perf_counter()
        # A server that tells no usage is taken to send a token a chunk, as vLLM's bench does.
        result.output_tokens = result.output_tokens or len(result.arrivals)
        if result.error is None and not result.arrivals and not result.output_tokens:
            result.error = "the stream ended without any output"
        return result

    async def speculation(self) -> SpeculationFigures | None:
        """See :class:`Backend`."""
        import httpx

        try:
            response = await self._client.get(f"{self._base_url}/metrics", timeout=10.0)
        except httpx.HTTPError:
            return None
        return from_prometheus(response.text.splitlines()) if response.status_code == 200 else None

    async def aclose(self) -> None:
        """See :class:`Backend`."""
        await self._client.aclose()

    def _request_body(self, request: BenchRequest) -> dict[str, Any]:
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        if not self._chat:
            prompt: Any = request.prompt
            prompt = prompt if isinstance(prompt, str) else prompt.tolist()
            return {**self._body, **streamed, "prompt": prompt, "max_tokens": request.max_tokens}
        if request.messages is None:
            raise InputError(
                f"request {request.number}: has no messages for {self._path}; use --endpoint "
                "/v1/completions"
            )
        return {
            **self._body,
            **streamed,
            "messages": list(request.messages),
            "max_completion_tokens": request.max_tokens,
        }

    def _read(self, line: str, result: RequestResult) -> None:
        """One line of the event stream."""
        if not line.startswith(_DATA):
            return
        data = line.removeprefix(_DATA).strip()
        if data == "[DONE]":
            return
        event = json.loads(data)
        if event.get("error"):
            result.error = f"the server says: {event['error']}"
            return
        usage = event.get("usage")
        if usage:
            result.output_tokens = usage.get("completion_tokens") or 0
            result.prompt_tokens = usage.get("prompt_tokens") or 0
            details = usage.get("prompt_tokens_details") or {}
            result.cached_tokens = details.get("cached_tokens", result.cached_tokens)
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            text = choice.get("text") if not self._chat else delta.get("content")
            result.text += text or ""
            if text or delta.get("tool_calls") or delta.get("reasoning_content"):
                result.arrivals.append(time.perf_counter())


async def _served_model(client: httpx.AsyncClient, base_url: str) -> str:
    response = await client.get(f"{base_url}/v1/models", timeout=30.0)
    response.raise_for_status()
    models = response.json().get("data") or []
    if not models:
        raise ValueError("it serves no model")
    return str(models[0]["id"])


def _sampling_body(sampling: Sampling) -> dict[str, Any]:
    """What was asked for only: servers refuse what they do not know."""
    values = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": sampling.seed,
        "ignore_eos": sampling.ignore_eos or None,
    }
    return {name: value for name, value in values.items() if value is not None}
