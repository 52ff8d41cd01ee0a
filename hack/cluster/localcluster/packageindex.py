"""This machine's package index settings as variables for pip and uv inside an image build.

They travel as BuildKit secrets: a private index, its credentials and a company's CA bundle must not stay in an image.
Settings that mean files of this machine (find-links, cache folders) are left out: in a build there are no such files.
"""

import configparser
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

# pip's option -> uv's variable of the same meaning; pip's own is the option in capitals after PIP_.
_PIP_TO_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "timeout": "UV_HTTP_TIMEOUT",
}
_PIP_OPTIONS = (*_PIP_TO_UV, "retries", "no-index", "proxy")
_UV_VARIABLES = (
    *_PIP_TO_UV.values(),
    "UV_INDEX_URL",
    "UV_EXTRA_INDEX_URL",
    "UV_INDEX_STRATEGY",
    "UV_NATIVE_TLS",
    "UV_HTTP_TIMEOUT",
)
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")
_CA_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


def variables(environment: Mapping[str, str], pip_files: Iterable[Path], uv_files: Iterable[Path]) -> dict[str, str]:
    """Variables that make pip and uv in a build use the same indexes as here.

    Later files count more than earlier ones, and the environment more than any file, as pip and uv themselves have it.
    """
    pip = _read_pip(pip_files)
    for option in _PIP_OPTIONS:
        name = _pip_variable(option)
        if environment.get(name):
            pip[option] = environment[name]
    if environment.get("PIP_DEFAULT_TIMEOUT"):
        pip.setdefault("timeout", environment["PIP_DEFAULT_TIMEOUT"])
    result = {_pip_variable(option): value for option, value in pip.items()}
    result |= {_PIP_TO_UV[option]: value for option, value in pip.items() if option in _PIP_TO_UV}
    result |= _read_uv(uv_files)
    result |= {name: environment[name] for name in _UV_VARIABLES if environment.get(name)}
    for name in _PROXIES:
        for spelling in (name, name.lower()):
            if environment.get(spelling):
                result[spelling] = environment[spelling]
    return result


def secret_options(environment: Mapping[str, str], home: Path, scratch: Path) -> list[str]:
    """`--secret` options, alike for buildctl and docker; files that they name are written to `scratch`."""
    pip = pip_files(environment, home)
    index = scratch / "index"
    index.touch(mode=0o600)
    index.write_text(shell(variables(environment, pip, uv_files(environment, home))))
    options = [f"--secret=id=index,src={index}"]
    if bundle := ca_bundle(environment, pip):
        options.append(f"--secret=id=ca,src={bundle}")
    return options


def ca_bundle(environment: Mapping[str, str], pip_files: Iterable[Path]) -> Path | None:
    """The CA bundle that this machine's clients use in place of their own, if one is set."""
    candidates = [environment.get(name, "") for name in _CA_VARIABLES] + [
        _read_pip(pip_files, ("cert",)).get("cert", "")
    ]
    return next((Path(path) for path in candidates if path and Path(path).is_file()), None)


def shell(settings: Mapping[str, str]) -> str:
    """The variables as lines for a shell."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in sorted(settings.items()))


def pip_files(environment: Mapping[str, str], home: Path) -> list[Path]:
    """pip's configuration files, the one that counts most last."""
    if environment.get("PIP_CONFIG_FILE") == "/dev/null":
        return []
    own = [environment["PIP_CONFIG_FILE"]] if environment.get("PIP_CONFIG_FILE") else []
    return [Path("/etc/pip.conf"), home / ".pip/pip.conf", home / ".config/pip/pip.conf", *map(Path, own)]


def uv_files(environment: Mapping[str, str], home: Path) -> list[Path]:
    """uv's configuration files, the one that counts most last."""
    if environment.get("UV_CONFIG_FILE"):
        return [Path(environment["UV_CONFIG_FILE"])]
    return [Path("/etc/uv/uv.toml"), home / ".config/uv/uv.toml"]


def _pip_variable(option: str) -> str:
    return "PIP_" + option.upper().replace("-", "_")


def _read_pip(files: Iterable[Path], options: Iterable[str] = _PIP_OPTIONS) -> dict[str, str]:
    found: dict[str, str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        parser.read(file)
        for section in ("global", "install"):
            for option in options:
                if parser.has_option(section, option):
                    found[option] = " ".join(parser.get(section, option).split())
    return found


def _read_uv(files: Iterable[Path]) -> dict[str, str]:
    found: dict[str, str] = {}
    for file in files:
        if not file.is_file():
            continue
        settings = tomllib.loads(file.read_text())
        settings |= settings.get("pip", {})
        if "index-url" in settings:
            found["UV_DEFAULT_INDEX"] = settings["index-url"]
        extra = list(settings.get("extra-index-url", []))
        for index in settings.get("index", []):
            if index.get("default"):
                found["UV_DEFAULT_INDEX"] = index["url"]
            else:
                extra.append(index["url"])
        if extra:
            found["UV_INDEX"] = " ".join(extra)
        if settings.get("native-tls"):
            found["UV_NATIVE_TLS"] = "1"
    return found
