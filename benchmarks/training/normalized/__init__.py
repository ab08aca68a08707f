"""XQC compared with SAC, and with XQC without one of its parts."""
