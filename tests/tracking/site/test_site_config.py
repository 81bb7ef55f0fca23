"""What a site's file and its secrets may not be; nothing here starts a server."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from stack.errors import BadRequest, NotAble
from stack.tracking.login import LOGIN_FILE, Login, login
from stack.tracking.site.config import load_site
from stack.tracking.site.passwords import ADMIN_PASSWORD_VARIABLE, admin_password, require_strong
from stack.tracking.site.schema import require_current
from stack.tracking.site.serve import serve_site

GOOD = {
    "folder": "store",
    "database": "postgresql+psycopg://stack@db.test:5433/tracking",
    "listen": "127.0.0.1:5001",
    "names": ["tracking.test", "tracking.test:8443"],
}


def write(folder: Path, **changes: Any) -> Path:
    values = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    (folder / "site.yaml").write_text(yaml.safe_dump(values))
    return folder / "site.yaml"


def test_a_site_is_served_under_its_names_and_to_this_machine(tmp_path: Path) -> None:
    site = load_site(write(tmp_path))
    assert site.place.folder == tmp_path / "store"
    assert (site.host, site.port) == ("127.0.0.1", 5001)
    assert set(site.allowed_hosts) == {
        "tracking.test", "tracking.test:*", "tracking.test:8443", "localhost", "localhost:*", "127.0.0.1",
        "127.0.0.1:*",
    }  # fmt: skip
    assert site.allowed_origins == ("https://tracking.test", "https://tracking.test:8443")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"database": "postgresql+psycopg://stack:c4nary@db.test/tracking"}, "a password stands in the"),
        ({"database": "postgresql+psycopg://stack@db.test/t?password=c4nary"}, "a password stands in the"),
        ({"database": "postgresql+psycopg://db.test/tracking"}, "names no user"),
        ({"database": "mysql://stack@db.test/tracking"}, "begins with 'postgresql"),
        ({"database": "sqlite:////tmp/x.db"}, "begins with 'postgresql"),
        ({"listen": "0.0.0.0:5001"}, "reach without TLS"),
        ({"listen": "db.test:5001"}, "reach without TLS"),
        ({"listen": "5001"}, "listen is HOST:PORT"),
        ({"listen": "127.0.0.1:99999"}, "listen is HOST:PORT"),
        ({"listen": None}, "listen: Field required"),
        ({"names": []}, "names"),
        ({"names": ["*"]}, "no host name"),
        ({"names": ["https://tracking.test"]}, "no host name"),
        ({"workers": 0}, "workers"),
        ({"default_permission": "edit"}, "default_permission"),
        ({"databse": "sqlite"}, "did you mean 'database'"),
    ],
)
def test_what_no_server_should_do_is_refused_and_no_secret_is_repeated(
    tmp_path: Path, changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(BadRequest, match=match) as refused:
        load_site(write(tmp_path, **changes))
    assert "c4nary" not in str(refused.value)


def test_a_password_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pgpass").write_text("*:*:*:stack:c4nary\n")
    (tmp_path / "pgpass").chmod(0o640)
    with pytest.raises(BadRequest, match="mode 0640"):
        load_site(write(tmp_path, database_passfile="pgpass"))
    (tmp_path / "pgpass").chmod(0o600)
    site = load_site(write(tmp_path, database_passfile="pgpass"))
    assert site.place.uri.endswith(f"?passfile={tmp_path}/pgpass")
    with pytest.raises(BadRequest, match="cannot be read: No such file"):
        load_site(write(tmp_path, database_passfile="none"))


@pytest.mark.parametrize(
    ("password", "why"),
    [
        ("short-1A", "8 characters, and 12"),
        ("password1234", "known default"),
        ("Password!2345", "known default"),
        ("CHANGEME-123456", "known default"),
        ("admin-2026-01", "known default"),
        ("keeper-123456", "name with something appended"),
        ("aaaaaaaaaaaaaa", "1 different characters"),
        ("abababababababab", "2 different characters"),
        (" begins-with-space", "begins or ends with a space"),
    ],
)
def test_passwords_that_would_be_guessed_are_refused_and_not_repeated(password: str, why: str) -> None:
    with pytest.raises(BadRequest, match=why) as refused:
        require_strong(password, "keeper", "here")
    assert password.strip() not in str(refused.value)


def test_good_passwords_pass() -> None:
    for password in (
        "correct horse battery",
        "fK2-x9_QwLz8",
        "漢字ひらがなカタカナ한글ab",
        "a" * 6 + "bcdefg",
    ):
        require_strong(password, "keeper", "here")


def test_a_weak_admin_password_stops_the_start_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADMIN_PASSWORD_VARIABLE, "password1234")
    with pytest.raises(BadRequest, match="known default"):
        serve_site(write(tmp_path, database="sqlite"), log=print)
    assert not (tmp_path / "store").exists()


def test_without_a_password_no_first_user_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADMIN_PASSWORD_VARIABLE, raising=False)
    # It would change the settings of this process, which here is the tests' own.
    monkeypatch.setattr("stack.tracking.site.serve._set_environment", lambda site: None)
    with pytest.raises(BadRequest, match="no password is given; there is no default"):
        serve_site(write(tmp_path, database="sqlite"), log=print)


def test_a_database_that_is_away_or_refuses_the_login_is_told_without_the_password(
    postgres: Any, tools: Any, tmp_path: Path
) -> None:
    database = postgres.database(tmp_path)
    site = tools.make_site(tmp_path / "site", database, tls_port=443)
    place = load_site(site.file).place
    tools.write_secret(database.passfile, "*:*:*:*:wr0ng-c4nary\n")
    with pytest.raises(NotAble, match="password authentication failed") as refused:
        require_current(place)
    assert "passfile" not in str(refused.value) and "c4nary" not in str(refused.value)
    tools.write_secret(database.passfile, "")
    with pytest.raises(NotAble, match="no password supplied"):
        require_current(place)
    away = replace(place, uri=place.uri.replace(f":{postgres.port}/", f":{tools.free_port()}/"))
    with pytest.raises(NotAble, match=r"[Cc]onnection refused") as gone:
        require_current(away)
    assert gone.value.id == "track-database-away" and "pg_isready" in gone.value.do


def test_an_admin_password_comes_from_its_file_or_the_environment(tmp_path: Path) -> None:
    assert admin_password(None, {}) is None
    assert admin_password(None, {ADMIN_PASSWORD_VARIABLE: ""}) is None
    assert admin_password(None, {ADMIN_PASSWORD_VARIABLE: "from-environment"}) == "from-environment"
    file = tmp_path / "password"
    file.write_text("from-file\nsecond line\n")
    file.chmod(0o600)
    assert admin_password(file, {ADMIN_PASSWORD_VARIABLE: "from-environment"}) == "from-file"
    assert admin_password(tmp_path / "gone", {}) is None
    file.write_text("\n")
    with pytest.raises(BadRequest, match="is empty"):
        admin_password(file, {})


def test_a_login_is_taken_from_its_file_and_never_printed(tmp_path: Path) -> None:
    file = tmp_path / "login"
    file.write_text("anna:with:colons\n")
    file.chmod(0o600)
    environment = {LOGIN_FILE: str(file), "MLFLOW_TRACKING_USERNAME": "other"}
    found = login(environment)
    assert found == Login("anna", "with:colons")
    assert "with:colons" not in repr(found)
    assert environment["MLFLOW_TRACKING_PASSWORD"] == "with:colons"
    assert login({}) is None
    os.chmod(file, 0o604)
    with pytest.raises(BadRequest, match="mode 0604"):
        login({LOGIN_FILE: str(file)})


def test_the_roles_templates_render_to_what_the_stack_reads(tmp_path: Path, tools: Any) -> None:
    """Every template renders with the defaults and the values that a site must give, and nothing more."""
    given = {
        "mlflow_server_names": ["tracking.example"],
        "mlflow_server_tls_port": 443,
        "mlflow_server_port": 5001,
        "mlflow_server_database": "postgresql+psycopg://stack@127.0.0.1:5432/tracking",
        "mlflow_server_certificate": "/etc/ssl/c.pem",
        "mlflow_server_key": "/etc/ssl/k.pem",
    }
    rendered = {
        path.name.removesuffix(".j2"): tools.render(path.name, given)
        for path in (tools.ROLE / "templates").iterdir()
    }
    assert sorted(rendered) == [
        "nginx-tracking.conf", "site.yaml", "stack-tracking-backup.service", "stack-tracking-backup.timer",
        "stack-tracking-check.service", "stack-tracking-check.timer", "stack-tracking.service",
    ]  # fmt: skip
    text = rendered["site.yaml"].replace("/etc/stack-tracking/pgpass", str(tmp_path / "pgpass"))
    tools.write_secret(tmp_path / "pgpass", "*:*:*:stack:x\n")
    (tmp_path / "site.yaml").write_text(text)
    site = load_site(tmp_path / "site.yaml")
    assert site.allowed_origins == ("https://tracking.example",)
    assert str(site.admin_password_file) == "/etc/stack-tracking/admin-password"
    for name in ("stack-tracking.service", "stack-tracking-backup.service", "stack-tracking-check.service"):
        assert "password" not in rendered[name].lower()
        assert "User=stack-tracking" in rendered[name]
