"""Pictures of the first screen as SVG, without fonts or scripts from other servers."""
