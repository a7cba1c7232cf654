"""Archives of torch.export for the tests: the recorded ones, and edited copies."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "programs"
MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"


def edited(path: Path, changes: dict[str, Any], source: str = "changes") -> Path:
    """Write a program's archive with other records; None removes one, functions get its JSON."""
    with zipfile.ZipFile(FOLDER / f"{source}.pt2") as old, zipfile.ZipFile(path, "w") as new:
        for record in old.namelist():
            inside = record.partition("/")[2]
            content: Any = old.read(record)
            if inside in changes:
                change = changes[inside]
                if change is None:
                    continue
                if callable(change):
                    described = json.loads(content)
                    change(described)
                    content = json.dumps(described)
                else:
                    content = change
            new.writestr(record, content)
    return path


def set_at(*keys: Any) -> Callable[[Any], None]:
    """Return a function that sets the last of the keys at the place of the others."""
    *path, last, value = keys

    def change(described: Any) -> None:
        for key in path:
            described = described[key]
        described[last] = value

    return change


def places(described: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all items in a JSON structure."""
    items = described.items() if isinstance(described, dict) else enumerate(described)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))
