"""FairReplay: were we fair, when not, why, and what do we change?

The flow, folder by folder: ``trace`` (read a log) -> ``store`` (keep it) -> ``sandbox`` (replay it) ->
``metrics`` (measure it) -> ``causes`` (explain it) -> ``report`` (show it). ``cli`` has one file a command.
"""

__version__ = "0.1.0"
