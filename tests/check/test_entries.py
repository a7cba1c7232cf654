"""Our own entries are short, so that adding an operator stays easy."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "mlx_ops.yaml", *(ROOT / "ops").glob("*.yaml")]
MOST = 24  # lines of an entry, without documentation and samples
EXPLAINED = ("doc", "args", "returns", "samples")


def test_entries_are_short() -> None:
    lines, name, counts = Counter[str](), "", False
    text = "".join(path.read_text(encoding="utf-8") for path in FILES)
    for line in filter(str.strip, text.splitlines()):
        if line.startswith("- name:"):
            name = line.removeprefix("- name:").strip()
        if key := re.match(r"[- ] (\w+):", line):
            counts = key[1] not in EXPLAINED
        lines[name] += counts and line[0] in "- "
    assert len(lines) > 100
    assert {name: count for name, count in lines.items() if count > MOST} == {}
