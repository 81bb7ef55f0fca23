"""ModelScope, through its own client: one file at a time, resumed, with the client's errors translated.

The client is told the endpoint, the revision and the file's size. Hashes are checked by us, against the
manifest: a hub that lists a wrong hash for a wrong file would otherwise be believed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.errors import NotAble
from stack.mirror.hosts import AllowedHosts, guard
from stack.mirror.watching import Watch

# The client's own limit is one hour for a file: 14.5 GB would need 4 MB/s. A stalled transfer ends sooner, by
# the client's least speed.
TOTAL_TIMEOUT_S = 86_400
NOT_WRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass(frozen=True)
class Listed:
    """What the hub says of a file; either may be missing there."""

    size: int | None
    sha256: str | None


class FetchFailed(Exception):
    """One file could not be fetched.

    Attributes:
        what: ends a sentence that begins with the file's path.
        unreachable: the hub did not answer, as opposed to: it answered, and not with the file.
    """

    def __init__(self, what: str, *, unreachable: bool = False) -> None:
        super().__init__(what)
        self.what = what
        self.unreachable = unreachable


class Hub:
    """A ModelScope endpoint.

    Args:
        endpoint: `https://host` or `http://host:port`; None: the client's rules (MODELSCOPE_ENDPOINT, then
            the public site).
        scratch: folder for the client's locks and its session id, which otherwise go to the home directory.
        hosts: hosts that it may be redirected to, besides the endpoint's own; see `AllowedHosts`.

    Raises:
        NotAble: the client is not installed, or is another than the one that this was written for.
    """

    def __init__(self, endpoint: str | None, scratch: Path, hosts: Sequence[str] = ()) -> None:
        # Both are read when the client and its progress bar are first imported. The progress is ours.
        os.environ.setdefault("MODELSCOPE_DOWNLOAD_TOTAL_TIMEOUT", str(TOTAL_TIMEOUT_S))
        os.environ.setdefault("TQDM_DISABLE", "1")
        try:
            import modelscope_hub
        except ImportError as error:
            raise NotAble(
                "modelscope-missing",
                f"ModelScope's client cannot be imported: {error}",
                do="run 'make setup', or 'pip install modelscope-hub' on the connected machine",
            ) from error
        config = modelscope_hub.HubConfig(
            endpoint=endpoint,
            cache_dir=scratch / "cache",
            config_dir=scratch / "config",
            token=os.environ.get("MODELSCOPE_API_TOKEN", ""),
        )
        self.endpoint: str = config.endpoint
        self._errors: Any = modelscope_hub
        self._api: Any = modelscope_hub.HubApi(config)
        self._last_kind = self._guard(AllowedHosts(self.endpoint, hosts))

    def _guard(self, allowed: AllowedHosts) -> list[str]:
        refusal = type("HostRefused", (self._errors.HubError,), {"retryable": False})
        try:
            client = self._api.downloader._client
            guard(client._session, allowed, refusal)
            return guard(client._read_session, allowed, refusal)
        except AttributeError as error:
            raise NotAble(
                "modelscope-client-changed",
                f"this version of ModelScope's client cannot be kept to the allowed hosts: {error}",
                do="install the version that the lock pins ('make setup')",
            ) from error

    def fetch(
        self,
        repository: str,
        revision: str,
        path: str,
        into: Path,
        *,
        size: int | None,
        say: Callable[[str], None] = lambda _: None,
    ) -> str | None:
        """Fetch one file to `into/path`; resumes from what an earlier call left beside it.

        Args:
            say: gets a line of progress every few seconds.

        Returns:
            the sha256 of the file at `into/path` where it could be computed on the way, else None.

        Raises:
            FetchFailed: missing, refused, of another size, or the connection failed beyond the client's
                retries; what has arrived stays for the next call.
            NotAble: the disk is full or cannot be written.
        """
        errors = self._errors
        target = into / path
        watch = Watch(target.with_name(f"{target.name}.incomplete"), target, size, say)
        self._last_kind.clear()
        try:
            # HubApi.download_file has no progress; this is what it calls.
            self._api.downloader.download_file(
                repo_id=repository,
                repo_type="model",
                file_path=path,
                revision=revision,
                local_dir=into,
                file_size=size,
                progress_callbacks=[watch.callback()],
            )
            return watch.sha256()
        except errors.NotExistError as error:
            raise FetchFailed(f"is not in {repository} at revision {revision}") from error
        except (errors.AuthenticationError, errors.PermissionDeniedError) as error:
            what = "is refused by the hub; set MODELSCOPE_API_TOKEN if the repository is private"
            raise FetchFailed(what) from error
        except errors.FileIntegrityError as error:
            expected = "" if size is None else f"; expected {size} bytes"
            kind = f", of type {self._last_kind[0]}" if any(self._last_kind) else ""
            raise FetchFailed(f"is not what the hub should have sent{kind}: {error}{expected}") from error
        except (errors.NetworkError, errors.ServerError, errors.RateLimitError) as error:
            raise FetchFailed(f"could not be fetched: {error}", unreachable=True) from error
        except errors.HubError as error:
            raise FetchFailed(f"could not be fetched: {error}") from error
        except OSError as error:
            if error.errno in NOT_WRITABLE:
                raise NotAble(
                    "mirror-not-writable",
                    f"cannot write here: {error}",
                    where=str(into),
                    do="make room, or name another --to; the same command goes on from what has arrived",
                ) from error
            raise FetchFailed(f"could not be fetched: {error}", unreachable=True) from error
        finally:
            watch.close()

    def listing(self, repository: str, revision: str) -> dict[str, Listed]:
        """What the hub says of its files, by path.

        Raises:
            FetchFailed: no listing.
        """
        try:
            entries = self._api.list_repo_files(repository, "model", revision=revision)
        except (self._errors.HubError, OSError) as error:
            raise FetchFailed(f"has no listing at revision {revision}: {error}", unreachable=True) from error
        # The client gives size 0 both for an empty file and for an unknown size.
        return {e.path: Listed(e.size or None, e.sha256) for e in entries if not e.is_dir}
