"""gRPC as this project uses it: channels, servers, streams of blobs, errors, reconnection."""
