"""The CRC-32 of messages and files: zlib's CRC-32, computed ten times faster by Intel's ISA-L."""

from isal.isal_zlib import crc32

__all__ = ["crc32"]
