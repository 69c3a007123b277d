"""gRPC: the drafting service for other engines, and generation. ``proto/`` is the contract."""
