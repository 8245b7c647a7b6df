"""The plotly.js that a report carries: the bundle of cartesian charts, beside this file with its licence."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files


@lru_cache(maxsize=1)
def source() -> str:
    """The script."""
    return files("fairreplay.report").joinpath("plotly/plotly-cartesian.min.js").read_text(encoding="utf-8")


def version() -> str:
    """The version that its first lines name."""
    found = re.search(r"plotly\.js \(cartesian - minified\) v(\S+)", source()[:400])
    assert found is not None
    return found[1]
