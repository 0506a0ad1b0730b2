"""Untrusted YAML does not exhaust memory, and a page that cannot be read is ignored."""

import pytest

from tf_transformer.extensions.interop.families.hub import origin_of, parse_yaml

ALIASES = "\n".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9))
ALIASES = f"a0: &a0 [x]\n{ALIASES}\nlanguage: *a8\n"


@pytest.mark.parametrize(
    "head", [ALIASES, "language: " + "[" * 30_000, "language: [en" * 20, "\n" * 60_000, "a" * 10**6]
)
def test_an_unreadable_page_is_ignored(tmp_path, head):
    (tmp_path / "README.md").write_text(f"---\n{head}\n---\n")
    assert origin_of(tmp_path, tmp_path) == {"origin": tmp_path.name}


def test_yaml_of_aliases_or_too_deep():
    yaml = pytest.importorskip("yaml")
    for text, message in ((ALIASES, "without aliases"), ("[" * 60 + "]" * 60, "nested at most 50"), ("a: [", "while")):
        with pytest.raises(ValueError, match=message):
            parse_yaml(yaml, text.encode())
    assert parse_yaml(yaml, b"a: [1, no, &b ~]") == {"a": ["1", "no", "~"]}
