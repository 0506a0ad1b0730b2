"""YAML of untrusted files."""

from typing import Any

MOST_NESTED = 50  # depth of collections


def parse_yaml(yaml: Any, text: bytes) -> Any:
    """Parses YAML with the module `yaml`, PyYAML's. All scalars are strings, "null" and "yes" included.

    Ten lines of aliases can stand for gigabytes, so aliases raise `ValueError`, like text that is not YAML.
    """
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        depth = 0
        for event in yaml.parse(text, loader):
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("expected YAML without aliases")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_NESTED:
                raise ValueError(f"expected YAML nested at most {MOST_NESTED} deep")
        return yaml.load(text, Loader=loader)  # nosec: makes only strings, lists and mappings
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
