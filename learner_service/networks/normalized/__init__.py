"""Networks with batch normalization and unit rows, which fold into plain layers."""
