"""The extension: what the package does in its own process."""

__all__ = ["version"]

def version() -> str: ...
