"""Files that outlive a process. Each is written atomically and has a checksum."""
