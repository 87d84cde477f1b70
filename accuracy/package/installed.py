"""Is a third-party package there? Asked without importing it."""

import importlib.metadata


def unsupported(distribution: str) -> str | None:
    """Why nothing of the distribution can run, or None."""
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return f"{distribution} is not installed; pip install 'attention-accuracy[packages]'"
    return None
