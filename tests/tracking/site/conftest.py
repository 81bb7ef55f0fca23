"""A site as an operator has one: PostgreSQL under an account of its own, the server, nginx with TLS in front.

All listen on loopback, on ports that were free. Where PostgreSQL or nginx is not installed, what needs it is
skipped; `scripts/ci-packages.sh` installs both.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest
import yaml

from stack.tracking.site.config import load_site
from stack.tracking.site.place import Place, of_work

CHECKOUT = Path(__file__).resolve().parents[3]
ROLE = CHECKOUT / "ansible" / "roles" / "mlflow_server"
ROLE_NAME = "tracking_owner"
NAME = "tracking.test"  # resolved to loopback by the tests themselves


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_secret(path: Path, text: str) -> Path:
    path.touch(0o600)
    path.chmod(0o600)
    path.write_text(text)
    return path


def render(template: str, variables: dict[str, Any]) -> str:
    """A template of the role as Ansible would render it: defaults, then the site's own values."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True)
    values = {**yaml.safe_load((ROLE / "defaults" / "main.yml").read_text()), **variables}
    for _ in range(3):  # defaults that speak of other defaults
        values = {
            key: environment.from_string(value).render(values) if isinstance(value, str) else value
            for key, value in values.items()
        }
    return environment.from_string((ROLE / "templates" / template).read_text()).render(values)


@dataclass
class Postgres:
    """A cluster of an unprivileged account, with passwords asked for on TCP."""

    folder: Path
    port: int
    bin: Path
    superuser_passfile: Path
    role_password: str = field(repr=False)

    def sql(self, statement: str, database: str = "postgres") -> str:
        where = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-d", database]
        done = subprocess.run(
            [self.bin / "psql", *where, "-v", "ON_ERROR_STOP=1", "-qAtw", "-c", statement],
            env={**os.environ, "PGPASSFILE": str(self.superuser_passfile)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def database(self, folder: Path, model: Database | None = None) -> Database:
        """A new database, empty or as `model`; its owner's password stands in a file in `folder`."""
        name = f"tracking_{secrets.token_hex(4)}"
        copied = f" TEMPLATE {model.name}" if model is not None else ""
        self.sql(f"CREATE DATABASE {name} OWNER {ROLE_NAME}{copied}")
        passfile = write_secret(folder / f"{name}.pgpass", f"*:*:*:{ROLE_NAME}:{self.role_password}\n")
        return Database(self, name, self.role_password, passfile)


@dataclass
class Database:
    cluster: Postgres
    name: str
    password: str = field(repr=False)
    passfile: Path = Path()

    @property
    def uri(self) -> str:
        return f"postgresql+psycopg://{ROLE_NAME}@127.0.0.1:{self.cluster.port}/{self.name}"

    def sql(self, statement: str) -> str:
        return self.cluster.sql(statement, self.name)


def _as_user(user: str) -> list[str]:
    return ["setpriv", f"--reuid={user}", f"--regid={pwd.getpwnam(user).pw_gid}", "--clear-groups"]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda p: int(p.parts[4]))
    if not found:
        pytest.skip("PostgreSQL is not installed here; scripts/ci-packages.sh installs it")
    tools = found[-1].parent
    # Not below pytest's own folder, which another account may not enter.
    folder = Path(tempfile.mkdtemp(prefix="stack-postgres-"))
    password = secrets.token_urlsafe(16)
    secret = write_secret(folder / "superuser", password)
    command: list[str] = []
    if os.geteuid() == 0:
        names = {entry.pw_name for entry in pwd.getpwall()}
        user = "postgres" if "postgres" in names else "nobody"
        for path in (folder, secret):
            shutil.chown(path, user)
        command = _as_user(user)
    data, port = folder / "data", free_port()
    made = ["-U", "postgres", "-A", "scram-sha-256", f"--pwfile={secret}", "-E", "UTF8", "--locale=C"]
    subprocess.run(
        [*command, tools / "initdb", "-D", data, *made, "--no-sync"],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=folder,
    )
    settings = ["fsync=off", "listen_addresses=127.0.0.1", f"port={port}", "unix_socket_directories="]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [*command, tools / "postgres", "-D", data, *(f"-c{setting}" for setting in settings)],
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    passfile = write_secret(folder / "pgpass", f"*:*:*:postgres:{password}\n")
    cluster = Postgres(folder, port, tools, passfile, f"db-{secrets.token_urlsafe(16)}")
    try:
        _wait_for(lambda: _accepts(port), 30, lambda: (folder / "log").read_text())
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(AssertionError):
                cluster.sql("SELECT 1")
                break
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.1)
        cluster.sql(f"CREATE ROLE {ROLE_NAME} LOGIN PASSWORD '{cluster.role_password}'")
        yield cluster
    finally:
        server.send_signal(signal.SIGQUIT)  # at once: nothing of it is to be kept
        server.wait(timeout=120)
        shutil.rmtree(folder)


@dataclass
class SiteServer:
    """A site's server, started as its unit file does it."""

    folder: Path
    file: Path
    port: int
    admin_password: str = field(repr=False)
    database: Database | None = None
    child: subprocess.Popen[str] | None = None

    @property
    def log(self) -> str:
        return (self.folder / "server.out").read_text()

    def start(self) -> SiteServer:
        # The tests' own login, as a client, is none of the server's environment.
        client = ("MLFLOW_", "STACK_TRACKING_")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(client)}
        with (self.folder / "server.out").open("a") as out:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "stack", "track", "server", "--site", str(self.file)],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                text=True,
            )
        _wait_for(lambda: _is_healthy(self.port), 300, lambda: self.log, self.child)
        return self

    def stop(self) -> int:
        assert self.child is not None
        self.child.terminate()
        return self.child.wait(timeout=60)

    def kill(self) -> None:
        if self.child is None or self.child.poll() is not None:
            return
        os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait(timeout=30)

    def admin_login(self, folder: Path) -> Path:
        return write_secret(folder / "admin.login", f"admin:{self.admin_password}\n")


def make_site(folder: Path, database: Database | None, *, tls_port: int, **changes: Any) -> SiteServer:
    """A site's file from the role's template, with its secrets, in a folder; nothing is started."""
    folder.mkdir(parents=True, exist_ok=True)
    password = f"adm-{secrets.token_urlsafe(16)}"
    admin_file = write_secret(folder / "admin-password", f"{password}\n")
    port = free_port()
    variables = {
        "mlflow_server_folder": str(folder / "store"),
        "mlflow_server_database": database.uri if database else "sqlite",
        "mlflow_server_database_passfile": str(database.passfile) if database else "",
        "mlflow_server_port": port,
        "mlflow_server_tls_port": tls_port,
        "mlflow_server_names": [NAME, "localhost"],
        "mlflow_server_admin_password_file": str(admin_file),
        "mlflow_server_workers": 1,
        "mlflow_server_login_cache_s": 10,
        **changes,
    }
    (folder / "site.yaml").write_text(render("site.yaml.j2", variables))
    return SiteServer(folder, folder / "site.yaml", port, password, database)


@dataclass
class Front:
    """nginx with TLS before a server's port; `authority` is what clients are told to trust."""

    uri: str
    port: int
    authority: Path
    log: Path


@contextlib.contextmanager
def run_nginx(folder: Path, server_port: int, tls_port: int, **changes: Any) -> Iterator[Front]:
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None:
        pytest.skip("nginx is not installed here; scripts/ci-packages.sh installs it")
    folder.mkdir(parents=True, exist_ok=True)
    authority, certificate, key = make_certificates(folder)
    variables = {
        "mlflow_server_names": [NAME, "localhost"],
        "mlflow_server_port": server_port,
        "mlflow_server_tls_port": f"127.0.0.1:{tls_port}",
        "mlflow_server_certificate": str(certificate),
        "mlflow_server_key": str(key),
        **changes,
    }
    (folder / "site.conf").write_text(render("nginx-tracking.conf.j2", variables))
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "\n".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    user = "user root;\n" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"{user}daemon off;\npid {folder}/nginx.pid;\nworker_processes 1;\nevents {{}}\n"
        f"http {{\naccess_log {folder}/access.log;\n{places}\ninclude {folder}/site.conf;\n}}\n"
    )
    command = [nginx, "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf"), "-p", str(folder)]
    child = subprocess.Popen(command)
    try:
        _wait_for(lambda: _accepts(tls_port), 20, lambda: (folder / "error.log").read_text(), child)
        yield Front(f"https://{NAME}:{tls_port}", tls_port, authority, folder / "access.log")
    finally:
        child.terminate()
        child.wait(timeout=20)


def make_certificates(folder: Path) -> tuple[Path, Path, Path]:
    """An authority of the site's own, and a certificate and key for NAME and localhost, as PEM files."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now = datetime.datetime.now(datetime.timezone.utc)

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def build(subject: str, public: Any, days: int, *extensions: tuple[Any, bool]) -> Any:
        builder = x509.CertificateBuilder(named("a site's authority"), named(subject), public)
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(days=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=days))
        for extension, is_critical in extensions:
            builder = builder.add_extension(extension, critical=is_critical)
        return builder.sign(authority_key, hashes.SHA256())

    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    its_id = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    authority = build(
        "a site's authority",
        authority_key.public_key(),
        3650,
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (usage, True),
        (its_id, False),
    )
    certificate = build(
        NAME,
        key.public_key(),
        90,
        (x509.SubjectAlternativeName([x509.DNSName(NAME), x509.DNSName("localhost")]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(its_id), False),
    )
    pem = serialization.Encoding.PEM
    (folder / "authority.pem").write_bytes(authority.public_bytes(pem))
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(pem))
    write_secret(folder / "key.pem", "")
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "authority.pem", folder / "certificate.pem", folder / "key.pem"


class Stores:
    """Places of both kinds of database; tables are made once a kind, and copied from then on."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self._request, self._folder = request, folder
        self._models: dict[tuple[str, str], tuple[Place, Database | None]] = {}

    def empty(self, kind: str, folder: Path) -> Place:
        return self._new(kind, folder)[0]

    def current(self, kind: str, folder: Path) -> Place:
        """With the tables of the installed MLflow, and no run."""
        return self.like(kind, folder, "current", make_tables)

    def like(self, kind: str, folder: Path, name: str, make: Callable[[Place], None]) -> Place:
        if (kind, name) not in self._models:
            place, database = self._new(kind, self._folder / f"{kind}-{name}")
            place.folder.mkdir(parents=True, exist_ok=True)
            make(place)
            self._models[kind, name] = place, database
        model, database = self._models[kind, name]
        place = self._new(kind, folder, database)[0]
        place.folder.mkdir(parents=True, exist_ok=True)
        if kind == "sqlite":
            shutil.copyfile(model.database_file, place.database_file)
        return place

    def _new(self, kind: str, folder: Path, model: Database | None = None) -> tuple[Place, Database | None]:
        folder.mkdir(parents=True, exist_ok=True)
        if kind == "sqlite":
            return of_work(folder / "work"), None
        database = self._request.getfixturevalue("postgres").database(folder, model)
        return load_site(make_site(folder, database, tls_port=443).file).place, database


def make_tables(place: Place) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    SqlAlchemyStore(place.uri, "mlflow-artifacts:/").engine.dispose()


@pytest.fixture(scope="session")
def stores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(request, tmp_path_factory.mktemp("stores"))


@dataclass
class Site:
    """All of it, and how to be a client of it."""

    server: SiteServer
    front: Front
    login_file: Path

    @property
    def uri(self) -> str:
        return self.front.uri


@pytest.fixture(scope="session")
def site(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    tls_port = free_port()
    server = make_site(folder, postgres.database(folder), tls_port=tls_port, mlflow_server_workers=2)
    with run_nginx(folder / "nginx", server.port, tls_port) as front:
        try:
            server.start()
            yield Site(server, front, server.admin_login(folder))
        finally:
            server.kill()


@pytest.fixture(scope="session")
def tools() -> SimpleNamespace:
    """What the tests of a site build with; a conftest cannot be imported."""
    return SimpleNamespace(
        NAME=NAME,
        ROLE=ROLE,
        free_port=free_port,
        forget_login=forget_login,
        make_certificates=make_certificates,
        make_site=make_site,
        render=render,
        resolve_name=resolve_name,
        run_nginx=run_nginx,
        write_secret=write_secret,
    )


@pytest.fixture
def as_client(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """This process as a client of the site: the name resolves, its authority is trusted, a login is given."""
    resolve_name(monkeypatch)
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(site.front.authority))
    monkeypatch.setenv("STACK_TRACKING_LOGIN_FILE", str(site.login_file))
    forget_login(monkeypatch)
    return site


def forget_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what the code under test sets from a login file, now and when the test is over."""
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def resolve_name(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def resolve(host: Any, *args: Any, **options: Any) -> Any:
        return real("127.0.0.1" if host == NAME else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_healthy(port: int) -> bool:
    with (
        contextlib.suppress(OSError),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer,
    ):
        return bool(answer.status == 200)
    return False


def _wait_for(condition: Any, limit_s: float, said: Any, child: subprocess.Popen[Any] | None = None) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert child is None or child.poll() is None, said()
        assert time.monotonic() < deadline, said()
        time.sleep(0.1)
