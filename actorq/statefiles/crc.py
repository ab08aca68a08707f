"""The CRC-32 of messages and files: zlib's CRC-32, computed by Intel's ISA-L in a tenth of the time."""

from isal.isal_zlib import crc32

__all__ = ["crc32"]
