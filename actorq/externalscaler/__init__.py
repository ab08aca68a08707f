"""Generated from protos/externalscaler by `make protos`; never edited by hand."""
