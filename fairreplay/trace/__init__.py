"""The canonical trace (``schema``) and the readers that turn each log format into it (``formats``)."""
