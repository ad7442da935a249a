"""gRPC served on the event loop itself. Why not by grpcio: docs/decisions/grpc-on-the-event-loop.md."""
