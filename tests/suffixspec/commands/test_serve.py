"""``suffixspec serve`` as a process: it tells where it is, drains, keeps what it learned."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from suffixspec.cli import app
from suffixspec_index.errors import ConfigError
from tests.threads import ended

pytest.importorskip("torch")
pytest.importorskip("fastapi")

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "temperature": 0}


@dataclass(slots=True)
class Running:
    """The process. ``said`` is its standard output up to the last address."""

    process: subprocess.Popen[str]
    said: str
    url: str

    def stop(self) -> tuple[int, list[dict[str, Any]]]:
        """End it as an operator does; exit code, and the log."""
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=60)
        logged = [json.loads(line) for line in errors.splitlines() if line.startswith("{")]
        return self.process.returncode, logged


@contextmanager
def serving(folder: Path, model: Path, *flags: str) -> Iterator[Running]:
    (folder / "chat.jinja").write_text(TEMPLATE)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SUFFIXSPEC_")}
    settings = [
        f"service.data_dir={folder / 'data'}",
        f"service.chat_template={folder / 'chat.jinja'}",
        "service.drain_seconds=20",
    ]
    command = [sys.executable, "-c", "from suffixspec.cli import main; main()"]
    for setting in settings:
        command += ["--set", setting]
    command += ["serve", "--model", str(model), "--served-model-name", "tiny", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--grpc-port", "0", *flags],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = ""
        while "readyz" not in said:
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            said += line
        found = re.search(r"OpenAI API\s+(\S+)/v1", said)
        assert found is not None
        yield Running(process, said, found.group(1))
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.engine.conftest import write_tiny_llama

    return write_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


def test_it_says_where_to_look_and_drains(tmp_path: Path, model: Path) -> None:
    """A stream that runs when SIGTERM comes is finished; the next request is refused."""
    with serving(tmp_path, model) as running, httpx.Client(timeout=60) as client:
        for name in ("dashboard", "gRPC", "metrics", "health", "no API keys"):
            assert name in running.said
        assert client.get(f"{running.url}/readyz").status_code == 200
        body = CHAT | {"max_tokens": 450, "ignore_eos": True, "stream": True}
        lines: list[str] = []
        begun = threading.Event()

        def read() -> None:
            with (
                httpx.Client(timeout=60) as own,
                own.stream("POST", f"{running.url}/v1/chat/completions", json=body) as answer,
            ):
                for line in answer.iter_lines():
                    lines.append(line)
                    begun.set()

        reading = threading.Thread(daemon=True, target=read)
        reading.start()
        assert begun.wait(30)
        code, logged = running.stop()
        ended([reading], 30)
    assert code == 0
    assert lines[-2:] == ["data: [DONE]", ""] or lines[-1] == "data: [DONE]"
    events = [entry["event"] for entry in logged]
    assert "draining" in events
    assert {"event": "drained", "finished": True}.items() <= logged[events.index("drained")].items()
    assert "hello" not in json.dumps(logged)  # prompts are not logged


def test_what_was_learned_outlives_the_process(tmp_path: Path, model: Path) -> None:
    said = "the same words again and again and again and again"
    body = CHAT | {"messages": [{"role": "user", "content": said}], "max_tokens": 60}
    body["ignore_eos"] = True
    accepted = []
    for _ in range(2):
        with serving(tmp_path, model) as running:
            answer = httpx.post(
                f"{running.url}/v1/chat/completions",
                json=body | {"include_metrics": True},
                timeout=60,
            ).json()
            found = answer["metrics"]["speculative_decoding"]
            accepted.append(found["by_source"].get("global", {}).get("accepted", 0))
            assert running.stop()[0] == 0
    assert accepted[0] == 0
    assert accepted[1] > 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--host", "0.0.0.0"], "suffixspec keys add"),
        (["--port", "99999"], "port"),
        (["--keys-file", "missing.json"], "cannot be read"),
        (["--tls-certificate", "missing.pem"], "one is missing"),
        (["--host", "192.0.2.1", "--allow-public-without-keys"], "cannot listen"),
        (["--stream-cadence-ms", "-1"], "stream_cadence_ms"),
    ],
)
def test_what_is_refused_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["--set", f"service.data_dir={tmp_path}", "serve", "--port", "0", *flags]
    with pytest.raises(ConfigError, match=message):
        CliRunner().invoke(
            app, [*arguments, "--model", "no-such-model-anywhere"], catch_exceptions=False
        )
