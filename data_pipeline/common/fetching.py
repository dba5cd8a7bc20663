"""Files at URLs: fetched with fsspec into the user's cache, where their SHA-256 is their address."""

from __future__ import annotations

import re
from pathlib import Path

from data_pipeline.common.errors import InputError
from data_pipeline.common.extras import package
from data_pipeline.common.files import URL, Url, atomic_write, cache_folder
from data_pipeline.common.identity import sha256_of, sha256_of_bytes
from data_pipeline.common.messages import say

_PINNED = re.compile(r"(.*?)(?:#sha256=|@sha256:)(.*)", re.DOTALL)
"""A URL with the SHA-256 of its file. `#` and `=` need quotes on the command line, `@` and `:` do not."""


def local_file(address: str | Path) -> Path:
    """Return the path of a file, which is fetched if the address is a URL of any protocol that fsspec knows.

    At the end of a URL, `#sha256=DIGITS` or `@sha256:DIGITS` pins the contents: a file with another SHA-256 raises an
    `InputError`, and a file that is in the cache is not fetched again. Other URLs are fetched at each call.
    """
    if not isinstance(address, str) or not URL.match(address):
        return Path(address).expanduser()
    pinned = _PINNED.fullmatch(address)
    url, wanted = Url(pinned[1] if pinned else address), pinned[2].lower() if pinned else ""
    if pinned and not re.fullmatch("[0-9a-f]{64}", wanted):
        raise InputError(f"{address} ends in no SHA-256, which has 64 hexadecimal digits; `sha256sum FILE` prints it")
    folder, name = cache_folder("correctors"), url.name.partition("?")[0]
    if pinned and (kept := folder / wanted / name).is_file() and sha256_of(kept) == wanted:
        return kept
    content = _content(url)
    found = sha256_of_bytes(content)
    if wanted not in ("", found):
        raise InputError(f"{url} has the SHA-256 {found}, not {wanted}: it was replaced or damaged; ask its provider")
    kept = folder / found / name
    with atomic_write(kept) as file:
        file.write(content)
    say(f"fetched {url}@sha256:{found}")
    return kept


def _content(url: Url) -> bytes:
    with package(f"reading {url}", "hub"):
        import fsspec
    try:
        system, path = fsspec.core.url_to_fs(str(url))
        content: bytes = system.cat_file(path)
    except FileNotFoundError:
        raise InputError(f"there is no file {url}; check the URL") from None
    except ImportError as error:
        raise InputError(f"cannot read {url}: {error}; for hf:// run: pip install 'deepweather[hub]'") from None
    except Exception as error:  # every protocol has its own classes of errors
        raise InputError(f"cannot read {url} ({str(error) or type(error).__name__}); check the URL") from None
    return content
