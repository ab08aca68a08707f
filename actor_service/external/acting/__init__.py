"""The acting loop for simulators: batches, exploration, episodes and segments."""
