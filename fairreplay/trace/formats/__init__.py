"""One file a log format, all listed in ``FORMATS``."""
