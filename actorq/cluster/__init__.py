"""A run on Kubernetes, handled by a person's own permissions: apply it, watch it, reach its services, remove it."""
