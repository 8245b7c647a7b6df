"""Controls around a replica's scheduler: who is let in, who is held back, what happens under stress.

Each is written once, on indexable rows of integers (``places``): lists for the plain engine, int64 arrays for the
compiled one, which compiles these same functions when a plan first asks for a control (``compiled.control``).
"""
