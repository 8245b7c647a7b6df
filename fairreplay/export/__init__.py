"""What the store holds, as files for other tools."""
