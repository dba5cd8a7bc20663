"""Follow the pages of docs/recipes: write their files, and run their commands as they stand."""

from followed_page import blocks_of, lines_of, run_line


def follow(page, folder, command=None):
    """Follow a page in a folder that holds its data; return the output of each command by its first two words.

    Blocks with a file name are files; blocks of `sh` are command lines. All other blocks, such as requests to a data
    centre, are left out. A verb that the page uses twice has the output of both.
    """
    outputs = {}
    for language, name, text in blocks_of(f"recipes/{page}"):
        if name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        elif language == "sh":
            for line in lines_of(text):
                key = " ".join(line.split()[:2])
                outputs[key] = outputs.get(key, "") + run_line(line, folder)
    assert outputs, f"{page} has no commands"
    return outputs
