"""One task under several schemes and seeds: which runs to make, and what they say of each other."""
