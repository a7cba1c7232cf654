"""Keys and values of entries: invalid ones are reported, and only these are omitted."""

import pydantic
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.diagnostics import Diagnostics
from mlxgen.read.keys import OpEntry
from mlxgen.read.validate import validate
from mlxgen.read.yaml import Documents

KEYS = st.sampled_from([field.alias or name for name, field in OpEntry.model_fields.items()])
NAMES = st.sampled_from(["x", "cpu", "metal", "kernel", "grid", "function", "that", "else", "low"])
SCALARS = st.sampled_from(
    ["x", "none", "1", "0.5", "true", "no", "~", '""', ".inf", "method", "nn", "float32"]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda items: f"[{', '.join(items)}]")
        | st.dictionaries(NAMES, inner, max_size=3).map(
            lambda items: "{" + ", ".join(f"{key}: {item}" for key, item in items.items()) + "}"
        )
    ),
    max_leaves=6,
)


@settings(max_examples=1000, deadline=None)
@given(st.dictionaries(KEYS | NAMES, VALUES, min_size=1, max_size=3))
def test_what_is_refused_is_reported(entry):
    text = "- " + "\n  ".join(f"{key}: {value}" for key, value in entry.items())
    diags = Diagnostics()
    document = Documents.parse({"ops.yaml": text}, diags)
    (item,) = document.entries
    data = {key: value for key, value in item.data.items() if value is not None}
    try:
        expected = OpEntry.model_validate(data)
    except pydantic.ValidationError:
        expected = None
    said = len(diags)
    model, left_out = validate(item, "f", diags)
    if expected:
        assert model == expected and len(diags) == said
        assert left_out == set(item.data) - set(data)
    else:
        assert len(diags) > 0 and left_out
        # Unknown keys, at any depth, are corrected or omitted.
        mended = {str(path[0]) for path in item.renamed} | {part.split(".")[0] for part in left_out}
        kept = {key: value for key, value in data.items() if key not in mended}
        assert model.model_fields_set - mended == kept.keys()
        for key, value in kept.items():
            assert getattr(model, key) == getattr(OpEntry.model_validate({key: value}), key)
