"""A zoo of trained policies, and the curves of all tuned settings."""
