"""The public face: what is in it, and nothing else. A change here is a change of the API."""

import doctest
import subprocess
import sys

import pytest

import suffixspec

EXPORTED = [
    "AcceptanceModel",
    "CapacityError",
    "ConfigError",
    "Draft",
    "DraftBatch",
    "IndexConfig",
    "IndexStatistics",
    "InputError",
    "IntegrityError",
    "LoadedSettings",
    "LookupFailure",
    "METHODS",
    "MissingDependencyError",
    "NamespaceKey",
    "Namespaces",
    "NoCompletionsError",
    "Proposer",
    "RequestHandle",
    "Settings",
    "Sharing",
    "SharingConfig",
    "SnapshotCorruptError",
    "SnapshotError",
    "SnapshotFormatError",
    "Source",
    "SpeculativeConfig",
    "SuffixIndex",
    "SuffixSpecError",
    "SuffixTree",
    "TokenError",
    "TokenizerError",
    "TraceError",
    "TraceFormatError",
    "TreeStatistics",
    "UnknownNamespaceError",
    "UnknownRequestError",
    "UnknownSessionError",
    "__version__",
    "available_methods",
    "create_proposer",
    "load_index",
    "load_settings",
    "load_tree",
    "open_log",
    "register",
    "save_index",
    "save_tree",
]


def test_exported_members() -> None:
    assert sorted(suffixspec.__all__) == sorted(EXPORTED)
    assert dir(suffixspec) == sorted(EXPORTED)


@pytest.mark.parametrize("name", EXPORTED)
def test_every_member_is_there(name: str) -> None:
    assert getattr(suffixspec, name) is not None


def test_nothing_else_is() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        suffixspec.nothing  # noqa: B018


def test_the_example_runs() -> None:
    assert doctest.testmod(suffixspec).failed == 0


def test_importing_is_light() -> None:
    code = "import sys, suffixspec; print('numpy' in sys.modules, 'numba' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.split() == ["False", "False"]
