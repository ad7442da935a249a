"""A file that a port needs and that cannot be used is told as every mistake of a configuration: file, line, cure."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from extproc.cli._config import settings_from
from tests.security.conftest import Issued

POOL = "pools: {vllm: {endpoints: [{address: '127.0.0.1:8000'}]}}\n"


def told(file: Path, text: str, capsys: pytest.CaptureFixture[str], *, envoy: bool = False) -> list[str]:
    """What is said when a service is to start with it."""
    file.write_text(text)
    with pytest.raises(typer.Exit) as exit_:
        settings_from(file if envoy else None, None if envoy else file)
    assert exit_.value.exit_code == 1
    return capsys.readouterr().err.splitlines()


def test_each_is_named_with_its_line(tmp_path: Path, first: Issued, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").write_text("two words")
    text = f"""\
grpc:
  tls:
    cert_file: {first.service.cert}
    key_file: {tmp_path}/absent.key
admin:
  token_file: {tmp_path}/token
  tls:
    cert_file: {first.service.cert}
    key_file: {first.client.key}
{POOL}"""
    file = tmp_path / "extproc.yaml"
    grpc, admin, token, end = told(file, text, capsys)
    assert grpc == (
        f"error: {file}:4: grpc.tls.key_file: cannot read {tmp_path}/absent.key: No such file or directory;"
        " write the path that it has where the service runs; its user must be able to read it [port-file]"
    )
    assert admin.startswith(f"error: {file}:7: admin.tls: cannot use cert_file {first.service.cert} with key_file")
    assert admin.endswith("both must be PEM, the key without a password, and belong together [port-file]")
    assert token == (
        f"error: {file}:6: admin.token_file: {tmp_path}/token must hold one token, without spaces or line breaks in it"
        " [port-file]"
    )
    assert end == "extproc: not started, because of the errors above"


def test_a_port_that_nobody_may_ask_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "extproc.yaml"
    text = "admin: {protect: all}\n" + POOL
    line, _ = told(file, text, capsys)
    assert (
        ": admin.protect: all, and there is no token; set admin.token_file, or the variable EXTPROC_ADMIN_TOKEN" in line
    )
    monkeypatch.setenv("EXTPROC_ADMIN_TOKEN", "t0ken")
    assert settings_from(None, file).admin.protect == "all"


def test_in_an_envoy_yaml_it_is_told_where_it_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shipped = (Path(__file__).parents[2] / "envoy" / "envoy.yaml").read_text()
    section = 'admin: {listen: "127.0.0.1:9003"}'
    assert shipped.count(section) == 1
    text = shipped.replace(section, f"admin: {{listen: '127.0.0.1:9003', token_file: {tmp_path}/absent}}")
    number = text[: text.index("token_file")].count("\n") + 1
    file = tmp_path / "envoy.yaml"
    *_, line, _ = told(file, text, capsys, envoy=True)
    assert line.startswith(f"error: {file}:{number}: ")
    assert f"admin.token_file: cannot read {tmp_path}/absent: No such file or directory" in line


def test_with_good_files_it_starts(tmp_path: Path, first: Issued, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").write_text("t0ken\n")
    tls = f"{{cert_file: {first.service.cert}, key_file: {first.service.key}, client_ca_file: {first.ca.cert}}}"
    file = tmp_path / "extproc.yaml"
    file.write_text(f"grpc: {{tls: {tls}}}\nadmin: {{tls: {tls}, token_file: {tmp_path}/token}}\n{POOL}")
    assert settings_from(None, file, admin="127.0.0.1:1").admin.token_file == f"{tmp_path}/token"
    assert capsys.readouterr().err == ""
