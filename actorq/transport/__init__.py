"""Channels, servers, streams of blobs, errors on the wire, reconnection: gRPC as this project uses it."""
