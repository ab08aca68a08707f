"""A run on Kubernetes, with the user's permissions: apply it, watch it, reach its services, delete it."""
