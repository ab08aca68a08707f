"""Networks of agents in groups: each group has layers of its own, and a row gets the outputs of its group."""
