"""The sandbox: a deterministic simulation of a cluster's scheduler, in integer picoseconds."""
