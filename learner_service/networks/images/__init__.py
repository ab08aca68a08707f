"""Networks of a policy and its critics that share the layers for images."""
