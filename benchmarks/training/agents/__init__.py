"""Several agents with one policy: seconds to a target return, beside another library."""
