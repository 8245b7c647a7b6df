"""Windowed fairness metrics: SCR, JFI and type fairness, for the log and for every replay alike."""
