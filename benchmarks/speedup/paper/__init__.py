"""ActorQ's table, whole: returns, seconds, energy and carbon of the paper's tasks, by the scheme of the actors."""
