from support.apiserver import apiserver  # noqa: F401
