"""The CRC-32 of messages and files. It is that of zlib, from Intel's ISA-L, which takes a tenth of the time."""

from isal.isal_zlib import crc32

__all__ = ["crc32"]
