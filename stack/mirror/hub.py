"""ModelScope, through its own client: one file at a time, resumed, with the client's errors translated.

The client is told the endpoint, the revision and the file's size. Hashes are checked by us, against the
manifest: a hub that lists a wrong hash for a wrong file would otherwise be believed.
"""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.errors import NotAble

# The client's own limit is one hour for a file: 14.5 GB would need 4 MB/s. A stalled transfer ends sooner, by
# the client's least speed.
TOTAL_TIMEOUT_S = 86_400


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

    Raises:
        NotAble: the client is not installed.
    """

    def __init__(self, endpoint: str | None, scratch: Path) -> None:
        # Both are read when the client and its progress bar are first imported.
        os.environ.setdefault("MODELSCOPE_DOWNLOAD_TOTAL_TIMEOUT", str(TOTAL_TIMEOUT_S))
        if not sys.stderr.isatty():
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

    def fetch(self, repository: str, revision: str, path: str, into: Path, *, size: int | None) -> None:
        """Fetch one file to `into/path`; resumes from what an earlier call left beside it.

        Raises:
            FetchFailed: missing, refused, of another size, or the connection failed beyond the client's
                retries; what has arrived stays for the next call.
            NotAble: the disk is full or cannot be written.
        """
        errors = self._errors
        try:
            self._api.download_file(
                repository, "model", path, revision=revision, local_dir=into, file_size=size
            )
        except errors.NotExistError as error:
            raise FetchFailed(f"is not in {repository} at revision {revision}") from error
        except (errors.AuthenticationError, errors.PermissionDeniedError) as error:
            what = "is refused by the hub; set MODELSCOPE_API_TOKEN if the repository is private"
            raise FetchFailed(what) from error
        except errors.FileIntegrityError as error:
            expected = "" if size is None else f"; expected {size} bytes"
            raise FetchFailed(f"is not what the hub should have sent: {error}{expected}") from error
        except (errors.NetworkError, errors.ServerError, errors.RateLimitError) as error:
            raise FetchFailed(f"could not be fetched: {error}", unreachable=True) from error
        except errors.HubError as error:
            raise FetchFailed(f"could not be fetched: {error}") from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM):
                raise NotAble(
                    "mirror-not-writable", f"cannot write here: {error}", where=str(into)
                ) from error
            raise FetchFailed(f"could not be fetched: {error}", unreachable=True) from error

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
