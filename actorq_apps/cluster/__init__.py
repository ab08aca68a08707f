"""A run on Kubernetes, with the user's own permissions: apply it, watch it, reach its services, remove it."""
