"""suffixspec's HTTP and gRPC service. Not built yet."""
