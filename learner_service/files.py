"""Names of files in a learner's folder that other modules look for, too."""

KEPT_GRAPH = "policy_graph.json"
"""The policy's graph without weights, for the next learner process."""
OBJECT_STORAGE = "object_storage.json"
"""The state of the copies in object storage."""
COMMANDS = "commands.json"
"""What operators have commanded, with a copy."""
