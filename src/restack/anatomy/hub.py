"""The few things asked of the Hugging Face Hub: which files there are, small ones, and headers.

huggingface_hub does the talking, so HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE and the cache mean what
they always mean. It is imported when first needed: a local checkpoint does without.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from restack.anatomy.safetensors_header import header_size
from restack.errors import CheckpointError

_FIRST = 128 << 10  # bytes asked for at first: most headers fit, and one request is enough
_RETRIES = 2
_TIMEOUT = 20.0  # seconds without an answer


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a repository at one commit."""

    repository: str
    commit: str
    names: tuple[str, ...]

    def label(self, name: str) -> str:
        return f"{name} of {self.repository} on the Hub"


def cached(repository: str, revision: str | None) -> Path | None:
    """The snapshot in the local cache that holds the config of this revision, if there is one."""
    from huggingface_hub import try_to_load_from_cache

    with _explained(repository):
        found = try_to_load_from_cache(repository, "config.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else None


def listing(repository: str, revision: str | None) -> Listing:
    """Which files the Hub has, and the commit that `revision` (default: main) stands for."""
    from huggingface_hub import HfApi

    with _explained(repository, revision):
        info = HfApi().model_info(repository, revision=revision, timeout=_TIMEOUT)
    names = tuple(sorted(file.rfilename for file in info.siblings or ()))
    return Listing(repository, info.sha or revision or "main", names)


def read(found: Listing, name: str) -> Path:
    """A small file, through the cache."""
    from huggingface_hub import hf_hub_download

    with _explained(found.repository, name=name), _quietly():
        return Path(hf_hub_download(found.repository, name, revision=found.commit))


def headers(found: Listing, names: Sequence[str]) -> Iterator[tuple[bytes, int]]:
    """Header and size of each safetensors file, by range requests, in the order of `names`."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        yield from pool.map(lambda name: _header(found, name), names)


def download(repository: str, revision: str | None, names: Sequence[str]) -> Path:
    """The directory in the local cache that holds these files, after fetching what it lacks."""
    from huggingface_hub import snapshot_download

    exactly = [glob.escape(name) for name in names]
    with _explained(repository, revision):
        return Path(snapshot_download(repository, revision=revision, allow_patterns=exactly))


def _header(found: Listing, name: str) -> tuple[bytes, int]:
    from huggingface_hub import hf_hub_url

    url = hf_hub_url(found.repository, name, revision=found.commit)
    where = found.label(name)
    with _explained(found.repository, name=name):
        begin, size = _bytes(url, 0, _FIRST)
        stop = 8 + header_size(begin, size, where)
        if stop > len(begin):
            begin += _bytes(url, len(begin), stop)[0]
    if len(begin) < stop:
        raise CheckpointError(
            f"{where}: the connection broke after {len(begin)} of {stop} header bytes",
            hint="Try again.",
        )
    return begin[8:stop], size


def _bytes(url: str, start: int, stop: int) -> tuple[bytes, int]:
    """The bytes `[start, stop)` behind a URL as far as there are, and the size of the whole."""
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_stream_backoff

    wish = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
    with http_stream_backoff(
        "GET", url, max_retries=_RETRIES, headers=build_hf_headers() | wish, timeout=_TIMEOUT
    ) as response:
        if response.status_code == 416:  # what servers answer to a range of an empty file
            return b"", 0
        hf_raise_for_status(response)
        partial = response.status_code == 206
        # A server that knows no ranges sends the whole file: skip and stop reading early.
        skip = 0 if partial else start
        body = bytearray()
        for chunk in response.iter_raw(64 << 10):
            body += chunk
            if len(body) >= skip + stop - start:
                break
        total = response.headers.get("Content-Range", "").rpartition("/")[2]
        size = total if partial else response.headers.get("Content-Length", "")
    if not size.isdigit():
        raise CheckpointError(f"The server of {url} does not say how large the file is")
    return bytes(body[skip : skip + stop - start]), int(size)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without progress bars for files that are there in a moment."""
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


@contextmanager
def _explained(
    repository: str, revision: str | None = None, name: str | None = None
) -> Iterator[None]:
    """Turn what huggingface_hub raises into a CheckpointError that says what to do."""
    try:
        yield
    except CheckpointError:
        raise
    except (OSError, ValueError) as error:
        raise _explain(error, repository, revision, name) from error
    except Exception as error:
        # connection errors belong to the HTTP library, whose name changes between versions
        if not type(error).__module__.startswith(("httpx", "requests", "huggingface_hub")):
            raise
        raise _explain(error, repository, revision, name) from error


def _explain(
    error: Exception, repository: str, revision: str | None, name: str | None
) -> CheckpointError:
    from huggingface_hub import errors

    file = f"{name} of {repository}" if name else repository
    if isinstance(error, errors.GatedRepoError):
        return CheckpointError(
            f"{repository} is gated on the Hub, and this account has no access",
            hint=f"Accept its terms at https://huggingface.co/{repository}, then run "
            "`hf auth login` or set HF_TOKEN.",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return CheckpointError(
            f"{repository} has no revision {revision!r} on the Hub",
            hint="Give a branch, a tag or a full commit hash.",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return CheckpointError(
            f"{repository} is neither a directory nor a model on the Hub that can be seen",
            hint="Check the spelling; for a private model run `hf auth login` or set HF_TOKEN.",
        )
    if isinstance(error, errors.OfflineModeIsEnabled | errors.LocalEntryNotFoundError):
        return CheckpointError(
            f"{file} is neither a directory nor in the local cache, and the Hub is out of reach",
            hint="Check the connection and HF_HUB_OFFLINE, or give a directory.",
        )
    if isinstance(error, errors.EntryNotFoundError):
        return CheckpointError(f"{file} does not exist on the Hub")
    if isinstance(error, errors.HfHubHTTPError):
        status = getattr(error.response, "status_code", "an error")
        return CheckpointError(
            f"The Hub answered {status} when asked for {file}",
            hint="Try again later, or check HF_TOKEN and HF_ENDPOINT.",
        )
    if isinstance(error, errors.HFValidationError):
        return CheckpointError(
            f"{repository!r} is neither a directory nor the name of a model on the Hub",
            hint="Give a directory, or a Hub id such as owner/name.",
        )
    return CheckpointError(
        f"{file} could not be fetched from the Hub: {error}",
        hint="Check the connection, HF_ENDPOINT and the disk of the cache, or give a directory.",
    )
