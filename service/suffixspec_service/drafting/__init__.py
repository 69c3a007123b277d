"""Drafting for engines in other processes, whatever the transport."""

from suffixspec_service.drafting.acceptance import Acceptance
from suffixspec_service.drafting.calls import DraftingCalls
from suffixspec_service.drafting.config import DraftingConfig
from suffixspec_service.drafting.drafting import Drafting
from suffixspec_service.drafting.messages import (
    DraftingStatistics,
    LeaseTerms,
    NewRequest,
    OpenLease,
    Step,
)

__all__ = [
    "Acceptance",
    "Drafting",
    "DraftingCalls",
    "DraftingConfig",
    "DraftingStatistics",
    "LeaseTerms",
    "NewRequest",
    "OpenLease",
    "Step",
]
