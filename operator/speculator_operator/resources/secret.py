"""The Secret with the tokens that our programs know each other by."""

import base64
from collections.abc import Mapping

from speculator_operator.api.speculator import Speculator

from .names import KubeObject, common_labels, owned


def tokens_secret(speculator: Speculator, tokens: Mapping[str, str]) -> KubeObject:
    """Secret NAME-tokens; its keys are the file names that `contracts/settings.py` lists."""
    head = owned(speculator, "v1", "Secret", f"{speculator.metadata.name}-tokens", common_labels(speculator))
    data = {name: base64.b64encode(value.encode()).decode() for name, value in sorted(tokens.items())}
    return head | {"type": "Opaque", "data": data}
