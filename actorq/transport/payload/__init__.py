"""How bytes travel: cut into parts, packed, with checksums."""
