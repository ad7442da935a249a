"""gRPC shells: ext_proc, access log receiver, health."""
