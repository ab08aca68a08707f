"""The cost of a second weight encoding in the quantizer of a mixed fleet."""
