"""vLLM as a discrete-event model, and the same model behind a real HTTP server."""
