"""suffixspec's service: completions and drafts over HTTP and gRPC, and a page to look at."""
