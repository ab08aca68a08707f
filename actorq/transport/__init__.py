"""gRPC for this project: channels, servers, streams of blobs, errors, reconnection."""
