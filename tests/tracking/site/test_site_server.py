"""A site's server through its proxy: who is let in, under which names, and what shippers bring there."""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from stack.errors import BadRequest, Exit, NotAble, StackError
from stack.tracking import Journal, ship
from stack.tracking import names as tracked
from stack.tracking.journal import JOURNAL
from stack.tracking.login import LOGIN_FILE, Login, login
from stack.tracking.site import users
from stack.tracking.site.asking import Target, ask
from stack.tracking.site.check import check_server

STEPS = 400


def write_run(folder: Path, steps: int = STEPS, **options: Any) -> Journal:
    journal = Journal(folder, **{"name": folder.name, "experiment": tracked.TRAIN, **options})
    journal.params({"train.global_batch": 8})
    for step in range(steps):
        curves = {
            "train/loss": 1.0 / (step + 1),
            "perf/step_s": step / 7,
            "train/lr": step / 3,
            "data/epochs": step / 9,
        }
        journal.metrics(curves, step=step)
    (folder / "report.html").write_text(f"<h1>{folder.name}</h1>" * 100)
    journal.artifact(folder / "report.html")
    journal.end("FINISHED")
    return journal


def written(folder: Path) -> list[tuple[str, int, int, float]]:
    """The points of a journal's own lines."""
    points = []
    for line in (folder / JOURNAL).read_text().splitlines():
        record = json.loads(line)
        if record["kind"] == "metrics":
            points += [(key, record["step"], record["t"], v) for key, v in record["metrics"].items()]
    return sorted(points)


def stored(site: Any, run_id: str) -> list[tuple[str, int, int, float]]:
    """The points of a run as PostgreSQL's own client prints them; doubles would show."""
    query = (
        "SELECT m.key, m.step, m.timestamp, m.value FROM metrics m JOIN tags t USING (run_uuid) "
        f"WHERE t.key = 'stack.run_id' AND t.value = '{run_id}'"
    )
    rows = [line.split("|") for line in site.server.database.sql(query).splitlines()]
    return sorted((key, int(step), int(t), float(value)) for key, step, t, value in rows)


def test_a_run_goes_through_tls_and_login_and_comes_back(as_client: Any, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    journal = write_run(tmp_path / "run")
    ship(tmp_path, as_client.uri)
    assert stored(as_client, journal.run_id) == written(tmp_path / "run")
    client = MlflowClient(as_client.uri)
    experiment = client.get_experiment_by_name(tracked.TRAIN)
    (run,) = client.search_runs([experiment.experiment_id], f"tags.`stack.run_id` = '{journal.run_id}'")
    assert (run.info.status, run.data.params) == ("FINISHED", {"train.global_batch": "8"})
    assert run.info.artifact_uri.startswith("mlflow-artifacts:/")
    fetched = client.download_artifacts(run.info.run_id, "report.html", str(tmp_path))
    assert Path(fetched).read_bytes() == (tmp_path / "run" / "report.html").read_bytes()
    on_disk = list((as_client.server.folder / "store" / "artifacts").rglob("report.html"))
    assert any(run.info.run_id in path.parts for path in on_disk)


def test_eight_writers_at_once_and_the_server_killed_in_the_middle(
    as_client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine, requests that are given up and sent again would only make it busier.
    monkeypatch.setattr("stack.tracking.remote.TIMEOUT_S", 60)
    journals = [write_run(tmp_path / f"run{number}", 300) for number in range(8)]
    failures: list[BaseException] = []
    through: list[str] = []
    deadline = time.monotonic() + 420

    def one(journal: Journal) -> None:
        # As the shipper beside a run does it: it goes on until everything is there.
        while time.monotonic() < deadline:
            try:
                ship(journal.folder, as_client.uri)
                through.append(journal.run_id)
                return
            except NotAble as error:
                failures.append(error)
                time.sleep(1)

    threads = [threading.Thread(target=one, args=(journal,), daemon=True) for journal in journals]
    for thread in threads:
        thread.start()
    metrics = "SELECT count(*) FROM metrics"
    before = int(as_client.server.database.sql(metrics))
    while int(as_client.server.database.sql(metrics)) < before + 2000:
        time.sleep(0.5)
    as_client.server.kill()
    assert int(as_client.server.database.sql(metrics)) < before + 8 * 1200, "the kill must cut in the middle"
    as_client.server.start()
    for thread in threads:
        thread.join(timeout=max(0.0, deadline - time.monotonic()) + 30)
        assert not thread.is_alive()
    assert len(through) == 8, failures[-1]
    assert failures, "nobody noticed that the server was away"
    for journal in journals:
        assert stored(as_client, journal.run_id) == written(journal.folder)
        counted = as_client.server.database.sql(
            f"SELECT count(*) FROM tags WHERE key = 'stack.run_id' AND value = '{journal.run_id}'"
        )
        assert counted == "1"


def test_the_check_from_outside_finds_nothing_wrong(as_client: Any) -> None:
    found = check_server(Target.parse(as_client.uri), login())
    assert {checked.name: checked.is_good for checked in found} == dict.fromkeys(
        [
            "answers", "certificate", "name", "login", "pages", "foreign names", "default passwords",
            "as a user", "artifacts",
        ],
        True,
    ), found  # fmt: skip


def test_a_name_that_the_site_does_not_serve_is_noticed_although_health_is_green(
    as_client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Past the proxy, which itself answers no foreign name.
    direct = ("127.0.0.1", as_client.server.port)
    found = {c.name: c for c in check_server(Target("http://renamed.test", direct), login())}
    assert found["answers"].is_good
    assert found["name"].is_good is False and "renamed.test" in found["name"].said
    assert found["pages"].is_good is False
    with pytest.raises(NotAble, match="does not answer"):
        check_server(Target(as_client.uri.replace("tracking.test", "localhost"), ("127.0.0.1", 9)))
    write_run(tmp_path / "run", 1)
    monkeypatch.setattr("socket.getaddrinfo", _to_loopback)
    with pytest.raises(NotAble, match=r"refused a request under the name 'renamed\.test:") as refused:
        ship(tmp_path, f"http://renamed.test:{as_client.server.port}")
    assert "names" in refused.value.do


def _to_loopback(host: Any, port: Any, *rest: Any, **options: Any) -> Any:
    import socket

    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]


def test_logins_and_authorities_that_are_wrong_are_told_and_nothing_is_lost(
    as_client: Any, tmp_path: Path, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "run", 1)
    before = (tmp_path / "run" / JOURNAL).read_bytes()
    wrong = "wr0ng-canary-password"

    def refused(match: str, kind: type[StackError] = NotAble) -> StackError:
        with pytest.raises(kind, match=match) as error:
            ship(tmp_path / "run", as_client.uri)
        assert wrong not in str(error.value)
        assert (tmp_path / "run" / JOURNAL).read_bytes() == before
        tools.forget_login(monkeypatch)
        return error.value

    monkeypatch.setenv(LOGIN_FILE, str(tools.write_secret(tmp_path / "wrong", f"admin:{wrong}\n")))
    assert refused("does not accept the password of 'admin'").exit is Exit.NOT_ABLE
    monkeypatch.delenv(LOGIN_FILE)
    assert LOGIN_FILE in refused("asks for a login, and none is given").do
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
    refused("MLFLOW_TRACKING_USERNAME is set, and MLFLOW_TRACKING_PASSWORD is not", BadRequest)
    monkeypatch.setenv(LOGIN_FILE, str(tmp_path / "wrong"))
    (tmp_path / "wrong").chmod(0o644)
    refused("mode 0644, so others can read", BadRequest)
    (tmp_path / "wrong").chmod(0o600)
    (tmp_path / "wrong").write_text(wrong)
    refused("does not hold user:password", BadRequest)
    monkeypatch.setenv(LOGIN_FILE, str(as_client.login_file))
    monkeypatch.delenv("MLFLOW_TRACKING_SERVER_CERT_PATH")
    assert "MLFLOW_TRACKING_SERVER_CERT_PATH" in refused("certificate is not trusted").do
    (tmp_path / "other").mkdir()
    other = tools.make_certificates(tmp_path / "other")[0]
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(other))
    refused("certificate is not trusted")
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(tmp_path / "none.pem"))
    refused("cannot be used", BadRequest)


def test_a_login_in_an_address_is_refused_and_not_repeated(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 1)
    with pytest.raises(BadRequest, match="holds a login") as refused:
        ship(tmp_path / "run", "https://admin:c4nary-in-address@tracking.test")
    assert "c4nary" not in str(refused.value)


def test_users_are_made_with_strong_passwords_and_share_their_experiments(
    as_client: Any, tmp_path: Path, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, admin = Target.parse(as_client.uri), login()
    weak = tools.write_secret(tmp_path / "weak", "trainer12345\n")
    strong = tools.write_secret(tmp_path / "strong", "four-Blue-canary-7\n")
    with pytest.raises(BadRequest, match="the user's name with something appended"):
        users.add_user(target, admin, "trainer", weak, is_admin=False)
    users.add_user(target, admin, "trainer", strong, is_admin=False)
    with pytest.raises(BadRequest, match="already exists"):
        users.add_user(target, admin, "trainer", strong, is_admin=False)
    listed = users.list_users(target, admin)
    assert [(user.name, user.is_admin) for user in listed] == [("admin", True), ("trainer", False)]

    write_run(tmp_path / "by-admin", 1)
    ship(tmp_path / "by-admin", as_client.uri)
    tools.forget_login(monkeypatch)
    its_login = tools.write_secret(tmp_path / "login", "trainer:four-Blue-canary-7\n")
    monkeypatch.setenv(LOGIN_FILE, str(its_login))
    journal = write_run(tmp_path / "by-trainer", 5)
    ship(tmp_path / "by-trainer", as_client.uri)
    assert stored(as_client, journal.run_id) == written(tmp_path / "by-trainer")

    trainer = login()
    with pytest.raises(BadRequest, match="not an administrator's"):
        users.add_user(target, trainer, "another", strong, is_admin=True)
    with pytest.raises(NotAble, match=r"asks for a login|does not accept"):
        users.list_users(target, Login("trainer", "not-its-password"))
    renewed = tools.write_secret(tmp_path / "renewed", "five-Green-canary-8\n")
    users.set_password(target, admin, "trainer", renewed)
    search = "/api/2.0/mlflow/experiments/search?max_results=1"
    _soon(lambda: ask(target, search, login=trainer).status == 401)
    assert ask(target, search, login=Login("trainer", "five-Green-canary-8")).status == 200
    users.remove_user(target, admin, "trainer")
    _soon(lambda: ask(target, search, login=Login("trainer", "five-Green-canary-8")).status == 401)


def _soon(condition: Any) -> None:
    """A worker believes a login that it has checked for a while: `login_cache_s`."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.3)


def test_an_experiment_older_than_the_artifact_proxy_is_named(as_client: Any) -> None:
    from mlflow.tracking import MlflowClient

    login()
    client = MlflowClient(as_client.uri)
    made = client.create_experiment("before proxying", artifact_location="file:///data/mlruns/7")
    try:
        found = {c.name: c for c in check_server(Target.parse(as_client.uri), login())}
        assert found["artifacts"].is_good is False
        assert "before proxying" in found["artifacts"].said
    finally:
        client.delete_experiment(made)


def test_only_loopback_is_listened_on_and_no_other_place_is_called(as_client: Any) -> None:
    ports = {as_client.server.port, as_client.front.port, as_client.server.database.cluster.port}
    listening = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        address, port = line.split()[1].split(":")
        if line.split()[3] == "0A" and int(port, 16) in ports:
            listening.add((address, int(port, 16)))
    assert listening == {("0100007F", port) for port in ports}
    for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]:
        assert int(line.split()[1].split(":")[1], 16) not in ports
    # The page's own switch of MLflow's telemetry, as the browser asks for it.
    answer = ask(Target.parse(as_client.uri), "/ajax-api/3.0/mlflow/ui-telemetry", login=login())
    assert answer.status == 200 and answer.data["disable_ui_telemetry"] is True


def test_no_password_shows_anywhere(as_client: Any, tmp_path: Path, tools: Any) -> None:
    """Process lists, logs, unit files, the store, the tables: after everything that the tests above did."""
    site = as_client.server
    journal = write_run(tmp_path / "run", 5)
    ship(tmp_path, as_client.uri)
    secrets = {
        "admin's": site.admin_password,
        "database's": site.database.password,
        "session key": (site.folder / "store" / "session-key").read_text().strip(),
    }
    shown: dict[str, bytes] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            shown[f"process {process.name}"] = (process / "cmdline").read_bytes()
        except OSError:
            continue
    assert any(str(site.file).encode() in line for line in shown.values()), "the server must be in the list"
    for template in (tools.ROLE / "templates").iterdir():
        if template.name.startswith("stack-tracking") and template.name.endswith(".service.j2"):
            shown[template.name] = tools.render(template.name, {"mlflow_server_names": ["x"]}).encode()
    shown["site.yaml"] = site.file.read_bytes()
    logs = [site.folder / "server.out", site.database.cluster.folder / "log"]
    logs += [path for path in (site.folder / "nginx").glob("*.log")]
    keeps = {site.folder / "store" / "session-key"}
    files = [p for p in (site.folder / "store").rglob("*") if p.is_file() and p not in keeps]
    for path in [*logs, *files, *tmp_path.rglob("*")]:
        if path.is_file():
            shown[str(path)] = path.read_bytes()
    assert len([name for name in shown if name.endswith((".out", ".log", "/log"))]) >= 3
    for table in ("tags", "params", "experiment_tags", "users"):
        shown[f"table {table}"] = site.database.sql(f"SELECT * FROM {table}").encode()
    assert journal.run_id.encode() in shown["table tags"]
    found = [
        (what, where) for what, text in secrets.items() for where in shown if text.encode() in shown[where]
    ]
    assert found == []
    # A worker is started with the session key, and with neither password.
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        if str(site.folder).encode() in environment:
            assert site.admin_password.encode() not in environment
            assert site.database.password.encode() not in environment
    mode = (site.folder / "store" / "session-key").stat().st_mode & 0o777
    assert (mode, (site.folder / "store").stat().st_mode & 0o007) == (0o600, 0)


def test_the_proxy_speaks_tls_only_and_passes_a_large_artifact_on(as_client: Any, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{as_client.front.port}/health", timeout=5)
    login()
    client = MlflowClient(as_client.uri)
    run = client.create_run(client.create_experiment(f"large {time.time_ns()}"))
    content = os.urandom(1 << 20) * 24
    (tmp_path / "large.bin").write_bytes(content)
    client.log_artifact(run.info.run_id, str(tmp_path / "large.bin"))
    (tmp_path / "back").mkdir()
    back = client.download_artifacts(run.info.run_id, "large.bin", str(tmp_path / "back"))
    assert Path(back).read_bytes() == content
