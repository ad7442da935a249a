"""Several processes that route as one."""
