"""Outcomes of replacing the values of damaged GRIB files: no crash, no hang, no silent success on a changed header.

Each file is a small ensemble forecast in GRIB1 or GRIB2 with a random damage: other octets in the headers, a cut,
repeated messages, or two messages joined in the middle. `rewrite` must write it or refuse it in one sentence. Where it
writes, messages without new values must equal the input byte for byte, and messages with new values must keep its
header. Files are numbered, and each number always gives the same file. Exits with 1 if any file has a bad outcome.

python -m benchmarks.fuzz_grib --runs 10000
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.writing import Edit, Encoder, HeaderMarks, Message, rewrite

GRID = Grid.regular(9, 14)
MEMBERS = (1, 2, 3)
EDITED = 2
"""The member that gets new values in files with an odd number; in the others, every message gets them."""
HEADER_OCTETS = 160
"""Damaged octets lie before this one: in sections 0 to 2 of GRIB1, 0 to 5 of GRIB2."""
BATCH = 100
"""Files per child process."""
SECONDS_PER_FILE = 20
MEMORY = 8 << 30
"""Bytes of memory that a child process may ask for."""
GOOD = ("written", "refused")


def forecasts() -> tuple[list[bytes], list[bytes]]:
    """Return the undamaged messages: members of one forecast in GRIB1 and in GRIB2."""
    found = []
    for edition, template in ((1, {}), (2, {"productDefinitionTemplateNumber": 1})):
        encoder = Encoder(
            GRID, edition=edition, centre="ecmf", setLocalDefinition=1, localDefinitionNumber=1, type="pf",
            stream="enfo", expver="0001", typeOfLevel="surface", numberOfForecastsInEnsemble=4, **{"class": "od"},
            **template,
        )  # fmt: skip
        values = {n: np.random.default_rng(n).normal(280, 5, GRID.shape) for n in MEMBERS}
        found.append(
            [
                encoder.encode(values[n], shortName="2t", dataDate=20200101, endStep=24, perturbationNumber=n)
                for n in MEMBERS
            ]
        )
    return found[0], found[1]


def damaged(originals: tuple[list[bytes], list[bytes]], number: int) -> bytes:
    """Return the damaged file with this number."""
    chance = random.Random(number)
    messages = [bytearray(message) for message in chance.choice(originals)]
    damage = chance.randrange(4)
    if damage == 0:
        message = chance.choice(messages)
        for _ in range(chance.randint(1, 4)):
            message[chance.randrange(min(len(message), HEADER_OCTETS))] = chance.randrange(256)
    elif damage == 1:
        whole = b"".join(messages)
        return whole[: chance.randrange(len(whole))]
    elif damage == 2:
        messages = [chance.choice(messages) for _ in range(chance.randint(1, 6))]
    else:
        first, second = chance.choice(originals)[0], chance.choice(originals)[1]
        at = chance.randrange(len(first))
        messages = [bytearray(first[:at] + second[chance.randrange(len(second)) :]), messages[1]]
    return b"".join(messages)


def outcome(folder: Path, contents: bytes, every: bool) -> str:
    """Return the outcome of `rewrite` for a file with these contents: one of `GOOD`, or a description of the fault.

    Either every message gets new values, or only those of member `EDITED`.
    """
    source, target = folder / "in.grib", folder / "out.grib"
    source.write_bytes(contents)
    target.unlink(missing_ok=True)
    asked: list[Message] = []

    def correction(message: Message) -> Edit | None:
        if not every and message.number != EDITED:
            return None
        asked.append(message)
        return Edit(np.full(GRID.shape, 280.0), header=HeaderMarks())

    try:
        edits = rewrite(source, target, correction)
    except InputError as error:
        return "an output beside a refusal" if target.exists() else "refused" if str(error) else "refused in silence"
    except Exception as error:  # every other exception is a finding
        place = [frame for frame in traceback.extract_tb(error.__traceback__) if "data_pipeline" in frame.filename][-1]
        return f"{type(error).__name__} in {Path(place.filename).name}:{place.lineno}: {str(error)[-90:]}"
    if edits != len(asked):
        return "another number of edits than asked for"
    return "written" if kept(contents, target.read_bytes(), edits) else "silent success on a changed header"


def kept(before: bytes, after: bytes, edits: int) -> bool:
    """Whether two files have the same messages, except the values and marks of at most `edits` messages."""
    old, new = list(split(before)), list(split(after))
    if len(old) != len(new):
        return False
    changed = [pair for pair in zip(old, new, strict=True) if pair[0] != pair[1]]
    return len(changed) <= edits and all(header(one) == header(other) for one, other in changed)


def split(contents: bytes) -> Iterator[bytes]:
    """Yield the messages of a file, by the lengths in their own headers."""
    at = contents.find(b"GRIB")
    while at >= 0:
        octets = contents[at + 4 : at + 7] if contents[at + 7] == 1 else contents[at + 8 : at + 16]
        end = at + int.from_bytes(octets, "big")
        yield contents[at:end]
        at = contents.find(b"GRIB", end)


def header(message: bytes) -> bytes:
    """Return the octets that new values and marks must keep: of GRIB1 sections 1 and 2, of GRIB2 sections 1 to 4.

    The decimal scale of GRIB1 and the generating process, which the marks change, are zero.
    """
    octets = bytearray(message)
    if message[7] == 1:
        end = 8 + int.from_bytes(message[8:11], "big")
        if message[15] & 128:
            end += int.from_bytes(message[end : end + 3], "big")
        octets[13] = octets[34] = octets[35] = 0
        return bytes(octets[7:end])
    at = 16
    while message[at + 4] < 5:
        if message[at + 4] == 4:
            octets[at + 11] = octets[at + 13] = 0
        at += int.from_bytes(message[at : at + 4], "big")
    return bytes(octets[6:8] + octets[16:at])


def outcomes(numbers: range, folder: Path) -> Counter[str]:
    """Return the outcomes of files in a child process; a hang or a crash is an outcome of its own.

    The rest of the files after a hang or a crash get another child process.
    """
    counts: Counter[str] = Counter()
    report = folder / "outcomes"
    while numbers:
        report.write_text("")
        child = os.fork()
        if not child:
            work(numbers, folder, report)
        status = os.waitpid(child, 0)[1]
        lines = report.read_text().splitlines()
        if status:
            code = os.waitstatus_to_exitcode(status)
            at = numbers[len(lines)]
            lines.append(f"{'hang' if code == -signal.SIGALRM else f'crash (status {code})'} at file {at}")
        counts.update(lines)
        numbers = numbers[len(lines) :]
    return counts


def work(numbers: range, folder: Path, report: Path) -> None:
    """Append the outcome of each file to `report`, and end this process."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # ecCodes writes its own errors there
    originals = forecasts()
    with report.open("a") as file:
        for number in numbers:
            signal.alarm(SECONDS_PER_FILE)
            found = outcome(folder, damaged(originals, number), every=number % 2 == 0)
            print(found if found in GOOD else f"{found} (file {number})", file=file, flush=True)
    os._exit(0)


def main(runs: int, first: int) -> int:
    """Print how often each outcome came up; return the exit code."""
    counts: Counter[str] = Counter()
    begin, last = time.monotonic(), first + runs
    with tempfile.TemporaryDirectory() as folder:
        for start in range(first, last, BATCH):
            counts += outcomes(range(start, min(start + BATCH, last)), Path(folder))
            print(f"\r{counts.total()} files", end="", file=sys.stderr, flush=True)
    print(f"\r{runs} damaged files in {time.monotonic() - begin:.0f} s")
    for found, count in counts.most_common():
        print(f"{count:6} {found}")
    return int(counts.keys() - set(GOOD) != set())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000, help="number of files")
    parser.add_argument("--first", type=int, default=0, help="number of the first file")
    options = parser.parse_args()
    sys.exit(main(options.runs, options.first))
