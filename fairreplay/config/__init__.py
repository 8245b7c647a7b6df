"""``fairreplay.toml`` as typed models; see ``model.py`` for the keys and ``load.py`` for reading them."""
