from collections.abc import Iterator

import pytest

from suffixspec_index import proposers
from suffixspec_index.draft import Draft
from suffixspec_index.errors import ConfigError, InputError, TokenError, UnknownRequestError
from suffixspec_index.proposers import available_methods, create_proposer, register
from suffixspec_index.proposers.null import NullProposer
from suffixspec_index.speculative_config import METHODS, SpeculativeConfig


@pytest.fixture(autouse=True)
def _unregister() -> Iterator[None]:
    before = dict(proposers._registered)
    yield
    proposers._registered.clear()
    proposers._registered.update(before)


@pytest.mark.parametrize("method", ["ngram", "prediction", "none"])
def test_creates_what_the_config_names(method: str) -> None:
    config = SpeculativeConfig(method=method, num_speculative_tokens=4)
    proposer = create_proposer(config, vocab_size=50, forbidden_token_ids={49})
    assert proposer.name == method
    request = proposer.begin("s", [1, 2, 3])
    proposer.advance(request, [4])
    assert proposer.propose(request) is Draft.empty()
    proposer.finish(request)
    with pytest.raises(TokenError, match="the vocabulary has 50 ids"):
        proposer.begin("s", [50])


def test_methods_of_other_rooms_are_named_as_missing() -> None:
    config = SpeculativeConfig(method="eagle", model="m", num_speculative_tokens=4)
    with pytest.raises(ConfigError, match=r"'eagle' is not available .* available are suffix, ngr"):
        create_proposer(config)


def test_registering() -> None:
    def factory(config: SpeculativeConfig, **options: object) -> NullProposer:
        return NullProposer(config)

    assert "medusa" not in available_methods()
    register("medusa", factory)
    register("medusa", factory)
    assert "medusa" in available_methods()
    config = SpeculativeConfig(method="medusa", model="m", num_speculative_tokens=4)
    assert isinstance(create_proposer(config), NullProposer)
    with pytest.raises(ConfigError, match="registered already"):
        register("medusa", NullProposer)
    with pytest.raises(ConfigError, match="registered already"):
        register("suffix", NullProposer)
    with pytest.raises(ConfigError, match="is not one of"):
        register("magic", NullProposer)


def test_available_methods_parse() -> None:
    assert {"suffix", "ngram", "prediction", "none"} <= set(available_methods()) <= set(METHODS)


def test_arguments_are_checked() -> None:
    config = SpeculativeConfig(method="none")
    with pytest.raises(ConfigError, match="vocab_size"):
        create_proposer(config, vocab_size=0)
    with pytest.raises(TokenError, match="forbidden_token_ids: position 0 is -1"):
        create_proposer(config, forbidden_token_ids=[-1])


def test_the_null_proposer_checks_like_the_others() -> None:
    proposer = NullProposer(vocab_size=10)
    request = proposer.begin("s", [1], max_tokens=2, prediction=[1, 2])
    assert len(proposer.propose_batch([request], [3])) == 1
    for call in (
        lambda: proposer.begin("s", [10]),
        lambda: proposer.begin("s", [1], max_tokens=-1),
        lambda: proposer.advance(request, [-1]),
        lambda: proposer.propose(request, -1),
    ):
        with pytest.raises(InputError):
            call()
    proposer.finish(request)
    proposer.end_session("s")
    with pytest.raises(UnknownRequestError):
        proposer.finish(request)
