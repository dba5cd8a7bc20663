"""Files at URLs: fetched once if they are pinned, and refused with another SHA-256."""

import hashlib

import fsspec
import pytest
from web_server import Handler, server

from data_pipeline.common.errors import InputError
from data_pipeline.common.fetching import local_file

__all__ = ["server"]
CONTENT = b"weights" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DEEPWEATHER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.safetensors").write_bytes(CONTENT)
    return tmp_path / "cache/correctors"


@pytest.mark.parametrize("pin", ["#sha256=", "@sha256:"])
def test_a_pinned_file_is_fetched_once(server, cache, pin, capsys):
    url = f"{server}/a.safetensors"
    for address in (f"{url}{pin}{SHA256}", f"{url}{pin}{SHA256.upper()}"):
        found = local_file(address)
        assert found == cache / SHA256 / "a.safetensors"
        assert found.read_bytes() == CONTENT
    assert Handler.requested.count("/a.safetensors") == 1
    assert capsys.readouterr().out == f"fetched {url}@sha256:{SHA256}\n"
    found.write_bytes(CONTENT[:-1])
    assert local_file(address).read_bytes() == CONTENT
    local_file(f"{url}?token=1")
    assert Handler.requested.count("/a.safetensors?token=1") == 1
    assert [file.name for file in cache.rglob("*.safetensors")] == ["a.safetensors"]


def test_a_replaced_file_is_refused_if_it_was_pinned(server, cache, tmp_path):
    (tmp_path / "a.safetensors").write_bytes(b"other")
    other = hashlib.sha256(b"other").hexdigest()
    with pytest.raises(InputError, match=f"a.safetensors has the SHA-256 {other}, not {SHA256}: it was replaced"):
        local_file(f"{server}/a.safetensors@sha256:{SHA256}")
    assert not cache.exists()
    assert local_file(f"{server}/a.safetensors").parent.name == other


def test_every_protocol_of_fsspec_is_read(tmp_path):
    with fsspec.open("memory://folder/a.safetensors", "wb") as file:
        file.write(CONTENT)
    for address in ("memory://folder/a.safetensors", f"file://{tmp_path}/a.safetensors"):
        assert local_file(f"{address}@sha256:{SHA256}").read_bytes() == CONTENT
    assert local_file("~/a.safetensors").is_absolute()
    assert local_file(tmp_path / "a.safetensors") == tmp_path / "a.safetensors"


def test_what_cannot_be_read_is_one_sentence(server):
    Handler.faults["/a.safetensors"] = 500, 9
    for address, sentence in (
        (f"{server}/absent", f"there is no file {server}/absent; check the URL"),
        (f"{server}/a.safetensors", "(500, message="),
        ("http://127.0.0.1:9/a", "cannot read http://127.0.0.1:9/a (Cannot connect"),
        ("nonsense://a", "cannot read nonsense://a (Protocol not known: nonsense"),
        (f"{server}/a.safetensors#sha256=abc", "#sha256=abc ends in no SHA-256, which has 64 hexadecimal digits"),
        (f"hf://datasets/a/b/c@sha256:{SHA256}", "pip install 'deepweather[hub]'"),
    ):
        with pytest.raises(InputError) as error:
            local_file(address)
        assert sentence in str(error.value)
