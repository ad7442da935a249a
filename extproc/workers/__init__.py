"""Several processes that route as one: workers that Envoy talks to, and a supervisor."""
