"""How much can one server take? A load test of it, and the profile that the service reads its thresholds from.

What to send, when a step is decided, which rate is next and what the readings come to are pure modules (`lengths`,
`prompts`, `confidence`, `judge`, `bracket`, `gauges`, `result`); `client`, `load` and `run` talk to the server.
"""
