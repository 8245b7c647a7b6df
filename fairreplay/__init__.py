"""FairReplay: were we fair, when not, why, and what do we change?

The flow, folder by folder: ``trace`` (read a log) -> ``store`` (keep it) -> ``sandbox`` (replay it) ->
``metrics`` (measure it) -> ``causes`` (explain it) -> ``report`` (show it). ``cli`` has one file a command; ``api`` has
the same verbs as functions: ``fairreplay.ingest``, ``replay``, ``metrics``, ``episodes``, ``report``,
``capacity``, ``sql``.
"""

import sys
from importlib import import_module
from types import ModuleType

__version__ = "0.1.0"

_VERBS = ("ingest", "replay", "metrics", "episodes", "report", "capacity", "sql")


class _Verb(ModuleType):
    """A folder of the flow that is also a verb: ``fairreplay.metrics(...)`` beside ``fairreplay.metrics.measure``."""

    def __call__(self, *arguments: object, **options: object) -> object:
        return getattr(import_module("fairreplay.api"), self.__name__.rpartition(".")[2])(*arguments, **options)


for _name in ("metrics", "report"):
    import_module(f"{__name__}.{_name}").__class__ = _Verb


def __getattr__(name: str) -> object:
    """The other verbs, which take long to import, when they are first asked for."""
    if name in _VERBS:
        return getattr(import_module("fairreplay.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*vars(sys.modules[__name__]), *_VERBS})
