"""The cost models that come with the package, by name.

Measured ones are files in ``models/``. Roofline ones are put together from ``rooflines.yaml``,
which holds each GPU's and each language model's constants once, with their sources.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from suffixspec_index.errors import ConfigError
from suffixspec_traces.cost.model import (
    PointsCost,
    RooflineCost,
    parse_cost_model,
    read_cost_model,
)

DEFAULT_COST_MODEL = "cpu-smollm2-135m-f32"
_MEASURED = ("cpu-smollm2-135m-f32", "cpu-smollm2-135m-bf16")
_BYTES = {"bf16": 2, "fp8": 1}
_KV_BYTES = 2  # keys and values stay in 16 bits unless an engine is told otherwise


def load_cost_model(name_or_path: str) -> PointsCost | RooflineCost:
    """An included model by name, or a file.

    Raises:
        ConfigError: no such name or file, or the file is no cost model.
    """
    if name_or_path in cost_model_names():
        return _included(name_or_path)
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return read_cost_model(path)
    raise ConfigError(
        f"cost_model {name_or_path!r}: neither a file nor an included model; included are "
        + ", ".join(cost_model_names())
    )


@cache
def cost_model_names() -> tuple[str, ...]:
    """Names of the included models: measured ones first, then rooflines."""
    data = _rooflines()
    names = list(_MEASURED)
    for gpu, hardware in data["gpus"].items():
        for model, shape in data["models"].items():
            for dtype in hardware["peak_flops_per_s"]:
                free = hardware["memory_bytes"] - shape["parameters"] * _BYTES[dtype]
                if free >= data["least_free_bytes"]:
                    names.append(f"{gpu}-{model}-{dtype}")
    return tuple(names)


def _included(name: str) -> PointsCost | RooflineCost:
    if name in _MEASURED:
        text = _folder().joinpath("models", f"{name}.yaml").read_text(encoding="utf-8")
        return parse_cost_model(yaml.safe_load(text), where=name)
    data = _rooflines()
    gpu = next(g for g in data["gpus"] if name.startswith(f"{g}-"))
    model, dtype = name.removeprefix(f"{gpu}-").rsplit("-", 1)
    hardware, shape = data["gpus"][gpu], data["models"][model]
    return RooflineCost(
        kind="roofline",
        name=name,
        provenance=(
            "Roofline, not measured: max(bytes read / bandwidth, operations / dense peak) + "
            f"overhead, batch on one GPU. GPU: {hardware['source']}. Model: {shape['source']}. "
            f"Overhead: {data['overhead_source']}. Keys and values in 16 bits."
        ),
        weight_bytes=shape["product_parameters"] * _BYTES[dtype],
        kv_bytes_per_token=(
            2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"] * _KV_BYTES
        ),
        flops_per_token=2 * shape["product_parameters"],
        bandwidth_bytes_per_s=hardware["bandwidth_bytes_per_s"],
        peak_flops_per_s=hardware["peak_flops_per_s"][dtype],
        overhead_ms=data["overhead_ms"],
    )


@cache
def _rooflines() -> dict[str, Any]:
    text = _folder().joinpath("rooflines.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.safe_load(text)
    return data


def _folder() -> Any:
    return resources.files("suffixspec_traces.cost")
