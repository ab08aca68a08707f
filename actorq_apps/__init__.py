"""What people run around the services: the command `actorq`, runs on this machine and on Kubernetes, and the operator.

It starts services as processes, and uses what `actorq` offers. No service imports it.
"""
