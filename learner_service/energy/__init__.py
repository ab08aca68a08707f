"""Energy and carbon of a run. Divides the readings of its machines' meters among its services, by CPU time."""
