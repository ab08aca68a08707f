"""Files that outlive a process. They are written whole, each with a checksum."""
