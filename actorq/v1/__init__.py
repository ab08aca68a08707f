"""Generated from protos/actorq/v1 by `make protos`; never edited by hand."""
