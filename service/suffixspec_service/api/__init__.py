"""HTTP: OpenAI's API, and what operators ask."""
