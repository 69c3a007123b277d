"""Sharing an index between processes: a log, a thread that publishes, a thread that follows.

Nothing of it is on the path of a draft: see ``docs/sharing.md``.
"""

from suffixspec_index.sharing.sharing import Sharing, SharingConfig
from suffixspec_index.sharing.status import NamespaceStatus, SharingStatus

__all__ = ["NamespaceStatus", "Sharing", "SharingConfig", "SharingStatus"]
