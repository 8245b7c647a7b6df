"""The store: a folder of Parquet segments named by content hash, and a manifest."""
