"""The streams of simulators: their spaces, their steps, and the gRPC service."""
