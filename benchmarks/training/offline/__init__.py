"""Training from stored data: steps that recordings save, and offline algorithms beside d3rlpy's."""
