"""The tracking server as the shipper sees it.

Every call has a short time-out and a bounded number of tries; what is left over is a `NotAble` that names
the server. A call whose answer was lost is tried again, so each is one that can be repeated; `create_run`,
which cannot, searches for the run before it makes one.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from stack.errors import NotAble
from stack.tracking import names, views
from stack.tracking.address import host_of, prepare_environment
from stack.tracking.curves import Point
from stack.tracking.limits import DIGEST_CHARACTERS, batches, text_bytes
from stack.tracking.login import login, refusal, refuse_login_in_address, trust
from stack.tracking.replay import DatasetUse
from stack.tracking.secrets import redacted_text

HEALTH_TIMEOUT_S = 10
TIMEOUT_S = 30  # a full batch takes a busy server seconds
TRIES = 3
HEALTHY = b"OK"  # all that /health of an MLflow server says
WAIT_S = 1.0
METRICS_A_BATCH = 1000
ENTRIES_A_BATCH = 100
TAG_OF_INPUT_CHARACTERS = 500

T = TypeVar("T")


class Remote:
    """One tracking server.

    Raises:
        BadRequest: the address is not one of HTTP, or holds a login.
        NotAble: MLflow is not installed; the server does not answer, or is not to be trusted.
    """

    def __init__(self, server: str) -> None:
        refuse_login_in_address(server)
        host = host_of(server)
        self.uri = server.rstrip("/")
        prepare_environment(host, TIMEOUT_S)
        login()
        self._wait_for_health()
        self.client = _new_client(self.uri)
        self._experiments: dict[str, str] = {}
        self._models: set[str] = set()

    def url(self, experiment_id: str, mlflow_run_id: str) -> str:
        return f"{self.uri}/#/experiments/{experiment_id}/runs/{mlflow_run_id}?{views.ML_MODE}"

    def table_url(self, experiment_id: str) -> str:
        """The table of an experiment's runs with the columns of `views.VIEWS`."""
        return f"{self.uri}/{views.table(experiment_id)}"

    def experiment(self, name: str) -> str:
        """The id of an experiment, made with its description where it is not there yet."""
        if name not in self._experiments:
            self._experiments[name] = self._find_or_make_experiment(name)
        return self._experiments[name]

    def find_run(self, run_id: str) -> Any | None:
        """The MLflow run of the newest attempt of the journal's `run_id`."""
        found = self.find_attempts(run_id)
        return found[max(found)] if found else None

    def find_attempts(self, run_id: str) -> dict[int, Any]:
        """MLflow runs of the journal's `run_id` by attempt; of doubles, left by lost answers, one is kept."""
        found: dict[int, Any] = {}
        for run in self._search(run_id):
            if _attempt(run) in found:
                self.call(self.client.delete_run, run.info.run_id)
            else:
                found[_attempt(run)] = run
        return found

    def running_children(self, run_id: str) -> list[Any]:
        """MLflow runs below the journal's `run_id` that the server believes to be running."""
        where = f"tags.`{names.PARENT}` = '{run_id}' AND attributes.status = 'RUNNING'"
        return self._search_all(where)

    def create_run(
        self, experiment_id: str, run_id: str, attempt: int, name: str, start_ms: int, tags: Mapping[str, str]
    ) -> Any:
        """A new run for an attempt; its page shows tags in this order, those set later after them."""

        is_retry = False

        def create() -> Any:
            nonlocal is_retry
            # A lost answer may have made the run already.
            found = self.find_attempts(run_id).get(attempt) if is_retry else None
            is_retry = True
            return found or self.client.create_run(
                experiment_id, start_time=start_ms, tags={**tags, names.RUN_ID: run_id}, run_name=name
            )

        return self.call(create)

    def log_params(self, mlflow_run_id: str, params: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        for batch in batches(params.items(), ENTRIES_A_BATCH, text_bytes):
            entries = [Param(key, value) for key, value in batch]
            self.call(self.client.log_batch, mlflow_run_id, params=entries)

    def set_tags(self, mlflow_run_id: str, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        for batch in batches(tags.items(), ENTRIES_A_BATCH, text_bytes):
            entries = [RunTag(key, value) for key, value in batch]
            self.call(self.client.log_batch, mlflow_run_id, tags=entries)

    def log_points(self, mlflow_run_id: str, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        for start in range(0, len(points), METRICS_A_BATCH):
            entries = [
                Metric(p.key, p.value, p.t_ms, p.step) for p in points[start : start + METRICS_A_BATCH]
            ]
            self.call(self.client.log_batch, mlflow_run_id, metrics=entries)

    def log_datasets(self, mlflow_run_id: str, datasets: Iterable[DatasetUse]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs = []
        for use in datasets:
            dataset = Dataset(
                name=use.name,
                digest=use.digest[:DIGEST_CHARACTERS],
                source_type="local",
                source=use.source,
                profile=use.profile,
            )
            tags = [InputTag("mlflow.data.context", use.context), InputTag("stack.digest", use.digest)]
            inputs.append(DatasetInput(dataset, [_cut_tag(tag) for tag in tags]))
        if inputs:
            self.call(self.client.log_inputs, mlflow_run_id, datasets=inputs)

    def log_artifact(self, mlflow_run_id: str, path: Path, to: str) -> None:
        self.call(self.client.log_artifact, mlflow_run_id, str(path), to or None)

    def log_text(self, mlflow_run_id: str, text: str, to: str) -> None:
        self.call(self.client.log_text, mlflow_run_id, text, to)

    def ensure_model(self, name: str) -> None:
        """Make a registered model where there is none of the name."""
        if name not in self._models:
            self._make(self.client.create_registered_model, name)
            self._models.add(name)

    def _make(self, function: Callable[[str], Any], name: str) -> None:
        """Make what may be there already."""
        from mlflow.exceptions import MlflowException

        def make() -> None:
            try:
                function(name)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise

        self.call(make)

    def rename(self, mlflow_run_id: str, name: str) -> None:
        self.call(self.client.update_run, mlflow_run_id, name=name)

    def set_status(self, mlflow_run_id: str, status: str, end_ms: int | None) -> None:
        if end_ms is None:
            self.call(self.client.update_run, mlflow_run_id, status=status)
        else:
            self.call(self.client.set_terminated, mlflow_run_id, status, end_ms)

    def _find_or_make_experiment(self, name: str) -> str:
        found = self.call(self.client.get_experiment_by_name, name)
        if found is None:
            # Another shipper may be quicker, or a first try of ours was not answered.
            self._make(self.client.create_experiment, name)
            found = self.call(self.client.get_experiment_by_name, name)
        if found is None or found.lifecycle_stage != "active":
            raise NotAble(
                "track-experiment-deleted",
                f"the experiment {name!r} is deleted on the server, so runs cannot be shown in it",
                where=self.uri,
                do="restore it: `mlflow experiments restore`, or delete it for good with `mlflow gc`",
            )
        self._describe(found, name)
        return str(found.experiment_id)

    def _describe(self, experiment: Any, name: str) -> None:
        """Say what the experiment is for, unless a person has said it already, and bring our columns."""
        there = experiment.tags
        for key, value in views.experiment_tags(experiment.experiment_id, name).items():
            is_said = key == names.DESCRIPTION and there.get(key)
            if there.get(key) != value and not is_said:
                self.call(self.client.set_experiment_tag, experiment.experiment_id, key, value)

    def _search(self, run_id: str) -> list[Any]:
        found = self._search_all(f"tags.`{names.RUN_ID}` = '{run_id}'")
        return sorted(found, key=lambda run: str(run.info.run_id))

    def _search_all(self, where: str) -> list[Any]:
        # One request a call: a server that fails now and then must not fail all of a longer one.
        ids = [experiment.experiment_id for experiment in self.call(self.client.search_experiments)]
        return list(self.call(self.client.search_runs, ids, where)) if ids else []

    def _wait_for_health(self) -> None:
        # MLflow's own tries are slow to give up; a server that is away is told in seconds.
        handlers = [urllib.request.HTTPSHandler(context=trust())] if self.uri.startswith("https:") else []
        opener = urllib.request.build_opener(*handlers)
        for left in reversed(range(TRIES)):
            try:
                with opener.open(f"{self.uri}/health", timeout=HEALTH_TIMEOUT_S) as answer:
                    said, place = answer.read(len(HEALTHY) + 1), answer.geturl()
            except (OSError, ValueError) as error:
                refused = refusal(self.uri, str(error))
                if isinstance(error, urllib.error.HTTPError) and not _is_passing_code(error.code):
                    refused = refused or _other(self.uri, f"it says {error.code} {error.reason} to /health")
                if refused is not None or not left:
                    raise refused or away(self.uri, error) from error
            else:
                if place != f"{self.uri}/health":
                    raise _other(self.uri, f"it sends its visitors on to {redacted_text(place)}")
                if said == HEALTHY:
                    return
                raise _other(self.uri, f"its /health begins with {said.decode(errors='replace')!r}")
            time.sleep(WAIT_S)

    def call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """What a function of MLflow's client returns, tried again where that may help."""
        for left in reversed(range(TRIES)):
            try:
                return function(*args, **options)
            except (NotAble, FileNotFoundError):
                raise
            except Exception as error:
                if not left or not _is_passing(error):
                    raise self._wrapped(error) from error
            time.sleep(WAIT_S)
        raise AssertionError("unreachable")

    def _wrapped(self, error: Exception) -> NotAble:
        refused = refusal(self.uri, str(error))
        if refused is not None:
            return refused
        if _is_passing(error):
            return away(self.uri, error)
        return NotAble(
            "track-refused",
            f"the tracking server refused a request: {_first_line(error)}",
            where=self.uri,
            do="what is in the journal stays there; ship again when this is mended",
        )


def _attempt(run: Any) -> int:
    number = run.data.tags.get(names.ATTEMPT, "1")
    return int(number) if number.isdigit() else 1


def away(uri: str, error: BaseException) -> NotAble:
    return NotAble(
        "track-server-away",
        f"the tracking server does not answer: {_first_line(error)}",
        where=uri,
        do="start it (`stack track server`), then ship again; the journal keeps everything until then",
    )


def _other(uri: str, what: str) -> NotAble:
    return NotAble(
        "track-other-server",
        f"what answers at this address is not an MLflow server: {what}",
        where=uri,
        do="give the server's own address, without a page's path; a proxy must let /health and /api through",
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return redacted_text(lines[0])[:300]


def _is_passing(error: Exception) -> bool:
    """Whether trying again may help: no connection, a time-out, an error on the server's side."""
    import requests
    from mlflow.exceptions import MlflowException

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return _is_passing_code(error.response.status_code)
    if isinstance(error, requests.RequestException):
        return True
    if isinstance(error, MlflowException):
        return error.error_code in (
            "INTERNAL_ERROR",
            "TEMPORARILY_UNAVAILABLE",
            "REQUEST_LIMIT_EXCEEDED",
            "DEADLINE_EXCEEDED",
            "ABORTED",
        )
    return False


def _is_passing_code(status: int) -> bool:
    return status >= 500 or status in (408, 429)


def _new_client(uri: str) -> Any:
    try:
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise NotAble(
            "track-no-mlflow", f"MLflow is not installed here: {error}", do="run `make setup`"
        ) from error
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _cut_tag(tag: Any) -> Any:
    from mlflow.entities import InputTag

    return InputTag(tag.key, tag.value[:TAG_OF_INPUT_CHARACTERS])
