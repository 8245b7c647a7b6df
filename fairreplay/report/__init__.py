"""The report: a JSON document first, and one self-contained HTML page as a view of it."""
