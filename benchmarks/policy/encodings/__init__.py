"""What a second weight encoding costs the quantizer of a mixed fleet."""
