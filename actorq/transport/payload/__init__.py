"""The format of bytes in transit: parts, compression, checksums."""
