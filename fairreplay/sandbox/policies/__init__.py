"""Which waiting request goes next: one file a policy, all listed in ``POLICIES``."""
