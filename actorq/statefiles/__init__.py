"""Files that outlive a process: written whole, each with a checksum."""
