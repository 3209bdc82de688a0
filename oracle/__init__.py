"""Differential testing of wrapped trainers against the reference loop."""

__version__ = "0.1.0"
__all__ = ["__version__", "record"]


def __getattr__(name: str) -> object:
    """What the package offers to other programs, imported when it is asked for: a command must not wait for torch."""
    if name == "record":
        from oracle.recorder.session import record

        return record
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
