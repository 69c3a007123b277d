"""suffixspec's verification engine (torch + transformers). Not built yet."""
