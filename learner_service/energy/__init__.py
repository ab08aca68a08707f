"""Energy and carbon of a run: the share of each service in what the meters of its machines report, by CPU time."""
