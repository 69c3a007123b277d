"""docs/metrics.md lists what is exposed, neither less nor more, with kinds, labels and meaning."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.metrics import MetricWrapperBase

from suffixspec_service.monitor import Monitor

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
_ROW = re.compile(r"^\| `([\w:]+)` \| (\w+) \| (.*?) \| (.*) \|$", re.M)


def exposed() -> dict[str, tuple[str, tuple[str, ...], str]]:
    registry = Monitor().registry
    labels = {
        collector._name: tuple(collector._labelnames)
        for collector in registry._collector_to_names
        if isinstance(collector, MetricWrapperBase)
    }
    found = {}
    for family in registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        own = labels.get(family.name, tuple(getattr(family, "_labelnames", ()) or ()))
        found[name] = (family.type, own, family.documentation)
    return found


def test_the_page_and_the_code_agree() -> None:
    listed = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)), text)
        for name, kind, labels, text in _ROW.findall(PAGE.read_text(encoding="utf-8"))
    }
    assert listed == exposed()
    assert len(listed) > 40


def test_names_in_the_text_exist() -> None:
    names = set(exposed())
    text = PAGE.read_text(encoding="utf-8")
    used = set(re.findall(r"\b(?:vllm:spec_decode|suffixspec)_[a-z_]+", text))
    bases = {n.removesuffix("_bucket") for n in used if not n.endswith("_")}
    assert bases - names == set()
