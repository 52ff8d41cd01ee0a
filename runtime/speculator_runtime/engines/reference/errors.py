"""Errors that a client of the engine gets to see."""


class BadRequest(Exception):
    """The request cannot be served as it is; `parameter` names what is wrong."""

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.parameter = parameter
