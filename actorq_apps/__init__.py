"""User-facing programs: the command `actorq`, runs on this machine and on Kubernetes, and the operator.

They start services as processes and use the packages of `actorq`. No service imports them.
"""
