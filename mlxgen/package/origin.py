"""The origin of the installed mlxgen, as an argument of pip that installs the same one elsewhere.

pip records the origin of a distribution that it did not get from an index in ``direct_url.json``
(PEP 610): a folder, an archive, or a repository.
"""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

from .. import __version__
from ..command.inputs import MLXGEN

REPOSITORY = ""
"""The address of the repository; ``tools.release --address`` writes it."""

_EXTRA = "[build]"


class Origin(NamedTuple):
    """An argument of ``pip install``, and a description for people."""

    requirement: str
    about: str


def find() -> Origin:
    """Return the origin of the mlxgen that runs, with the extra that builds packages."""
    try:
        text = importlib.metadata.distribution("mlxgen").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:  # its folder is in PYTHONPATH
        return _at(MLXGEN)
    if text is None:
        return Origin(f"mlxgen{_EXTRA}=={__version__}", f"mlxgen {__version__}")
    return _recorded(json.loads(text))


def _recorded(record: dict[str, Any]) -> Origin:
    url = record["url"]
    if "vcs_info" in record:
        vcs = record["vcs_info"]
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    elif urlsplit(url).scheme == "file":
        return _at(Path(url2pathname(urlsplit(url).path)))
    if folder := record.get("subdirectory"):
        url = f"{url}#subdirectory={folder}"
    return Origin(f"mlxgen{_EXTRA} @ {url}", f"mlxgen {__version__} from {url}")


def _at(path: Path) -> Origin:
    gone = "" if path.exists() else ", which no longer exists: install mlxgen from another place"
    return Origin(f"{path}{_EXTRA}", f"mlxgen {__version__} from {path}{gone}")
