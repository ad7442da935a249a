"""The command line: a module a command."""

import os

# `up` and `demo` start Envoy from the process that serves: gRPC's own fork handlers would write warnings then, and now
# and then end the child between fork and exec. It reads this when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from extproc.cli.main import main

__all__ = ["main"]
