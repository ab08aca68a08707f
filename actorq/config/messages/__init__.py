"""What commands say of settings: the expected values, the setting that is meant, and the help."""
