"""Why objects cannot be built from a Speculator."""


class CannotBuild(Exception):
    """Objects cannot be built. What runs already should be left as it is.

    `reason` is CamelCase for a condition: `NotSupportedYet`, `InvalidSettings` or `PolicyUnresolved`; `message` says
    what to do.
    """

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        self.message = message
        super().__init__(f"{reason}: {message}")
