"""Searches for settings: Optuna proposes the settings of whole runs, on this machine or on Kubernetes."""
