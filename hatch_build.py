"""What the built package says of itself: README.md as its long description, and where the project is public.

Both come of the one constant `ADDRESS` of accuracy/core/paths.py. hatch-fancy-pypi-readme, whose substitutions are
written in pyproject.toml, cannot read it, nor turn links into words while it is empty, nor give `urls`.
"""

import runpy
from pathlib import Path
from typing import Any


def described(root: Path) -> dict[str, Any]:
    """`readme` and `urls` of the project: links of README.md lead to the public repository, or are words."""
    public = runpy.run_path(str(root / "accuracy" / "core" / "paths.py"))
    return of_address(root, public, public["ADDRESS"])


def of_address(root: Path, public: dict[str, Any], address: str) -> dict[str, Any]:
    """`described`, for any address."""

    def target(link: str, picture: bool) -> str:
        if public["is_absolute"](link):
            return link
        return f"{address}/{'raw' if picture else 'blob'}/main/{link}" if address else ""

    text = public["relinked"]((root / "README.md").read_text(encoding="utf-8"), target)
    pages = {"Homepage": "", "Documentation": "#readme", "Changelog": "/blob/main/CHANGELOG.md", "Issues": "/issues"}
    urls = {name: f"{address}{page}" for name, page in pages.items()} if address else {}
    return {"readme": {"content-type": "text/markdown", "text": text}, "urls": urls}


def get_metadata_hook() -> type:
    """Hatchling calls this; it is imported here, as only a build has it."""
    from hatchling.metadata.plugin.interface import MetadataHookInterface

    class Described(MetadataHookInterface):
        def update(self, metadata: dict[str, Any]) -> None:
            metadata.update(described(Path(self.root)))

    return Described
