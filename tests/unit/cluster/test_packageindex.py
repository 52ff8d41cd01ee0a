"""Image builds use this machine's package indexes, and nothing of them but secrets carries them there."""

import subprocess
from pathlib import Path

from localcluster import packageindex


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_without_any_setting_there_are_no_variables() -> None:
    assert packageindex.variables({}, [], []) == {}


def test_pips_environment_reaches_pip_and_uv() -> None:
    environment = {"PIP_INDEX_URL": "https://index.example/a", "PIP_EXTRA_INDEX_URL": "https://index.example/b"}
    assert packageindex.variables(environment, [], []) == {
        "PIP_INDEX_URL": "https://index.example/a",
        "UV_DEFAULT_INDEX": "https://index.example/a",
        "PIP_EXTRA_INDEX_URL": "https://index.example/b",
        "UV_INDEX": "https://index.example/b",
    }


def test_later_pip_files_and_then_the_environment_count_more(tmp_path: Path) -> None:
    machine = write(tmp_path / "etc.conf", "[global]\nindex-url = https://index.example/machine\ntimeout = 5\n")
    user = write(tmp_path / "user.conf", "[install]\nindex-url = https://index.example/user\n")
    assert packageindex.variables({}, [machine, user], [])["PIP_INDEX_URL"] == "https://index.example/user"
    assert packageindex.variables({}, [machine, user], [])["UV_HTTP_TIMEOUT"] == "5"
    environment = {"PIP_INDEX_URL": "https://index.example/now"}
    assert packageindex.variables(environment, [machine, user], [])["UV_DEFAULT_INDEX"] == "https://index.example/now"


def test_uvs_own_settings_count_more_than_pips(tmp_path: Path) -> None:
    uv = write(
        tmp_path / "uv.toml",
        """
        native-tls = true
        [[index]]
        url = "https://index.example/first"
        default = true
        [[index]]
        url = "https://index.example/second"
        """,
    )
    found = packageindex.variables({"PIP_INDEX_URL": "https://index.example/pip"}, [], [uv])
    assert found["UV_DEFAULT_INDEX"] == "https://index.example/first"
    assert found["UV_INDEX"] == "https://index.example/second"
    assert found["UV_NATIVE_TLS"] == "1"
    assert found["PIP_INDEX_URL"] == "https://index.example/pip"
    environment = {"UV_DEFAULT_INDEX": "https://index.example/now"}
    assert packageindex.variables(environment, [], [uv])["UV_DEFAULT_INDEX"] == "https://index.example/now"


def test_what_names_files_of_this_machine_is_left_out() -> None:
    environment = {
        "PIP_FIND_LINKS": "/opt/wheels",
        "PIP_CERT": "/etc/ca.crt",
        "UV_CACHE_DIR": "/cache",
        "PIP_CACHE_DIR": "/c",
    }
    assert packageindex.variables(environment, [], []) == {}


def test_proxies_are_passed_in_the_spelling_that_is_set() -> None:
    assert packageindex.variables({"https_proxy": "http://localhost:3128"}, [], []) == {
        "https_proxy": "http://localhost:3128"
    }


def test_the_shell_reads_values_back_as_they_were(tmp_path: Path) -> None:
    value = "https://user:pa$$'word @index.example/ x"
    file = write(tmp_path / "index", packageindex.shell({"PIP_INDEX_URL": value}))
    script = f"set -a; . \"{file}\"; exec python3 -c \"import os; print(os.environ['PIP_INDEX_URL'], end='')\""
    assert subprocess.run(["sh", "-c", script], capture_output=True, text=True).stdout == value


def test_the_ca_bundle_is_the_first_that_exists(tmp_path: Path) -> None:
    bundle = write(tmp_path / "ca.pem", "certificates")
    missing = str(tmp_path / "no.pem")
    conf = write(tmp_path / "pip.conf", f"[global]\ncert = {bundle}\n")
    assert packageindex.ca_bundle({}, []) is None
    assert packageindex.ca_bundle({"SSL_CERT_FILE": missing}, []) is None
    assert packageindex.ca_bundle({"SSL_CERT_FILE": missing, "PIP_CERT": str(bundle)}, []) == bundle
    assert packageindex.ca_bundle({}, [conf]) == bundle


def test_secret_files_are_for_their_owner_only(tmp_path: Path) -> None:
    environment = {"PIP_INDEX_URL": "https://user:key@index.example", "PIP_CONFIG_FILE": "/dev/null"}
    options = packageindex.secret_options(environment, tmp_path, tmp_path)
    index = tmp_path / "index"
    assert options == [f"--secret=id=index,src={index}"]
    assert index.stat().st_mode & 0o077 == 0
    assert "key@index.example" in index.read_text()


def test_pips_configuration_is_off_when_pip_says_so(tmp_path: Path) -> None:
    assert packageindex.pip_files({"PIP_CONFIG_FILE": "/dev/null"}, tmp_path) == []
    assert packageindex.pip_files({"PIP_CONFIG_FILE": "/x/pip.conf"}, tmp_path)[-1] == Path("/x/pip.conf")
