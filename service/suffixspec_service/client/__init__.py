"""Clients of the drafting service, for engines in other processes.

:class:`DraftClient` blocks, :class:`AsyncDraftClient` is for event loops, :class:`RemoteProposer`
puts a client behind the contract of a proposer. All of them hold the tokens of what they have open,
so that after a restart of the service they go on as if nothing had happened.
"""

from suffixspec_service.client.aio import AsyncDraftClient
from suffixspec_service.client.blocking import DraftClient
from suffixspec_service.client.options import ClientOptions
from suffixspec_service.client.proposer import RemoteProposer
from suffixspec_service.client.requests import ClientRequest

__all__ = ["AsyncDraftClient", "ClientOptions", "ClientRequest", "DraftClient", "RemoteProposer"]
