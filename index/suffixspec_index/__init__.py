"""The ground room: the suffix tree, drafts, proposers and sessions (numpy and numba only)."""
