"""Degraded windows, merged into episodes, and why they happened."""
