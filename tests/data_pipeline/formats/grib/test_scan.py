import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib.scan import read_message, scan_messages
from data_pipeline.grid import Grid
from data_pipeline.writing import Encoder

GRID = Grid.regular(3, 4)
FIRST, SECOND = (Encoder(GRID, edition=edition).encode(np.arange(12.0).reshape(3, 4)) for edition in (1, 2))
BOTH = FIRST + SECOND


def messages_of(path: Path) -> list[tuple[int, int]]:
    return [(raw.offset, raw.length) for raw in scan_messages(path)]


@pytest.fixture
def file(tmp_path):
    def write(content: bytes) -> Path:
        (tmp_path / "file").write_bytes(content)
        return tmp_path / "file"

    return write


@settings(max_examples=30)
@given(st.integers(1, len(BOTH) - 1))
@example(len(FIRST))
@example(len(FIRST) + 1)
@example(len(FIRST) + 3)
@example(len(FIRST) - 1)
def test_a_file_cut_off_at_any_byte_is_refused_with_the_position(tmp_path_factory, size):
    path = tmp_path_factory.mktemp("cut") / "cut"
    path.write_bytes(BOTH[:size])
    if size == len(FIRST):  # a cut between messages is only noticed later, by the missing field
        assert messages_of(path) == [(0, size)]
        return
    with pytest.raises(InputError, match=rf"{path} .*(at|from) byte {0 if size < len(FIRST) else len(FIRST)}\b"):
        messages_of(path)


@settings(max_examples=20)
@given(st.integers(4, len(FIRST) - 1))
def test_bytes_missing_from_a_message_are_noticed(tmp_path_factory, lost):
    path = tmp_path_factory.mktemp("lost") / "lost"
    path.write_bytes(FIRST[:lost] + FIRST[lost + 1 :] + SECOND)
    with pytest.raises(InputError, match=str(path)):
        messages_of(path)


@pytest.mark.parametrize(
    "gap", [b"", b"\0" * 100_000, b"padding", b"\1\r\r\n0123 HTXE85 ECMF 040000\r\r\n", b"\0 \0\n"]
)
def test_padding_and_headings_between_messages_are_skipped(file, gap):
    path = file(gap + FIRST + gap + SECOND + b"\r\r\n\3" + b"\0" * 100)
    assert messages_of(path) == [(len(gap), len(FIRST)), (2 * len(gap) + len(FIRST), len(SECOND))]


def test_other_bytes_and_impossible_headers_are_refused(file):
    for content, sentence in (
        *(
            (FIRST + rubbish, f"no GRIB message from byte {len(FIRST)} ")
            for rubbish in (b"x", b"GRI", b"rubbish" * 100)
        ),
        (FIRST + bytes(70_000) + b"rubbish", f"no GRIB message from byte {len(FIRST) + 70_000} "),
        (FIRST + b"rubbish" * 100 + SECOND, f"no GRIB message from byte {len(FIRST)} "),
        (b"GRIB\0\0\x64\3" + bytes(200), "edition 3"),
        (b"GRIB\0\0\2\1" + bytes(200), "impossible length 2"),
        (b"GRIB" + bytes(204), "edition 0"),
    ):
        with pytest.raises(InputError, match=sentence):
            messages_of(file(content))


def test_messages_of_more_than_8_mebibytes(file):
    """Three bytes are too few for such a length; ECMWF counts in units of 120 bytes."""
    grid = Grid(tuple(np.linspace(90, -90, 2101)), tuple(np.arange(2000) * 0.18))
    long = Encoder(grid).encode(np.arange(2101 * 2000.0).reshape(grid.shape) % 977)
    assert len(long) > 2**23
    assert messages_of(file(long + FIRST)) == [(0, len(long)), (len(long), len(FIRST))]


def test_a_file_changed_since_its_scan_is_noticed(file):
    path = file(BOTH)
    (_, (offset, length)) = messages_of(path)
    path.write_bytes(SECOND + FIRST)
    with path.open("rb") as opened, pytest.raises(InputError, match=f"has changed at byte {offset}"):
        read_message(opened.fileno(), path, offset, length)


def test_scanning_reads_little_of_the_file(file, monkeypatch):
    long = Encoder(Grid.regular(361, 720)).encode(np.random.default_rng(0).standard_normal((361, 720)))
    path, count, pread = file(long * 10), [], os.pread
    monkeypatch.setattr(os, "pread", lambda *arguments: count.append(len(got := pread(*arguments))) or got)
    assert len(messages_of(path)) == 10
    assert sum(count) < 10 * 600 + 2**17
