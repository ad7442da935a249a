"""The OpenAI-compatible API as its clients see it."""
