"""References to the chunks of a Zarr store, as kerchunk writes them."""

import base64
import json


def references_of(folder, target=None):
    """Return references to the chunk files of a store of format 2; metadata and arrays of one dimension are inline.

    `target` is the address of the store, by default its path.
    """
    refs = {}
    for path in sorted(each for each in folder.rglob("*") if each.is_file() and each.name != ".zmetadata"):
        key, content = str(path.relative_to(folder)), path.read_bytes()
        if path.name.startswith("."):
            refs[key] = content.decode()
        elif len(json.loads((path.parent / ".zarray").read_text())["shape"]) > 1:
            refs[key] = [f"{target or folder}/{key}", 0, len(content)]
        else:
            refs[key] = "base64:" + base64.b64encode(content).decode()
    return refs
