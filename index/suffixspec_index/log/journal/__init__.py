"""The journal: a sequence log in a folder, append-only, checksummed, safe against crashes.

One process writes; any number on the same machine read. What the files look like is told in
:mod:`.layout` and :mod:`.segment`.
"""

from suffixspec_index.log.journal.log import JournalLog, open_journal

__all__ = ["JournalLog", "open_journal"]
