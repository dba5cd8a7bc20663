"""The public names of a Python file as Markdown, read without importing it: signatures and docstrings."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.common.errors import InputError

ROOT = Path(__file__).parents[2]
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Name:
    """A class or function: its dotted name, where it is defined, and its definition."""

    full: str
    node: Definition

    @property
    def kind(self) -> str:
        """Return the kind of Sphinx's directive."""
        return "class" if isinstance(self.node, ast.ClassDef) else "function"


def module_file(module: str) -> Path:
    """Return the file of a module, such as models.protocol."""
    for base in (ROOT, ROOT / "scripts"):
        place = base.joinpath(*module.split("."))
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.is_file():
                return path
    raise InputError(f"there is no module {module}; mend the list of modules in scripts/docs_site/python_pages.py")


def parse(module: str) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(module_file(module).read_text("utf-8"))


def public_names(module: str) -> list[Name]:
    """Return the classes and functions that a module defines, without those that start with an underscore."""
    return [
        Name(f"{module}.{node.name}", node)
        for node in parse(module).body
        if isinstance(node, Definition) and not node.name.startswith("_")
    ]


def resolve(full: str) -> str:
    """Return the name of a class or function at the place of its definition, after any number of imports."""
    module, _, name = full.rpartition(".")
    tree = parse(module)
    if any(isinstance(node, Definition) and node.name == name for node in tree.body):
        return full
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return resolve(f"{node.module}.{alias.name}")
    raise InputError(f"there is no {full}; mend the _target_ or the import that names it")


def definition(full: str) -> Name:
    """Return a class or function by the name of its definition."""
    module = full.rpartition(".")[0]
    return next(name for name in public_names(module) if name.full == full)


def entry(name: Name, shown: str | None = None) -> str:
    """Return the Markdown of a class or function, its public methods and fields, under the name `shown`."""
    node, full = name.node, shown or name.full
    if isinstance(node, ast.ClassDef):
        parts = [_docstring(node), *(_member(member) for member in _members(node))]
        return _directive("class", full + _constructor(node), "\n\n".join(filter(None, parts)), depth=1)
    return _directive("function", full + _signature(node), _docstring(node), depth=1)


def _members(node: ast.ClassDef) -> list[tuple[ast.stmt, str]]:
    """Return the public statements of a class body, each with the string that follows it."""
    following = [*node.body[1:], None]
    found = []
    for statement, after in zip(node.body, following, strict=True):
        text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        found.append((statement, str(text) if isinstance(text, str) else ""))
    return found


def _member(member: tuple[ast.stmt, str]) -> str:
    """Return the Markdown of a public method, property or field; "" for any other statement."""
    node, after = member
    if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
        decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
        if decorators & {"property", "cached_property"}:
            kind = f":type: {ast.unparse(node.returns)}\n\n" if node.returns else ""
            return _directive("property", node.name, kind + _docstring(node), depth=0)
        kind = next(iter(decorators & {"classmethod", "staticmethod"}), "method")
        signature = _signature(node, method=kind != "staticmethod")
        return _directive(kind, node.name + signature, _docstring(node), depth=0)
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_"):
        value = f":value: {ast.unparse(node.value)}\n" if node.value else ""
        body = f":type: {ast.unparse(node.annotation)}\n{value}\n{as_markdown(after)}"
        return _directive("attribute", node.target.id, body, depth=0)
    return ""


def _constructor(node: ast.ClassDef) -> str:
    """Return the signature of a class: of `__init__`, or of the fields of a data class."""
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            return re.sub(r" -> None$", "", _signature(member, method=True))
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        fields = [m for m in node.body if isinstance(m, ast.AnnAssign) and "ClassVar" not in ast.unparse(m.annotation)]
        words = [ast.unparse(field.target) + (f"={_default(field.value)}" if field.value else "") for field in fields]
        return f"({', '.join(words)})"
    return ""


def _default(value: ast.expr) -> str:
    """Return the default of a field as text; `...` if it is a call, such as `field(...)`."""
    return "..." if isinstance(value, ast.Call) else ast.unparse(value)


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, method: bool = False) -> str:
    arguments = node.args
    if method:
        first = (arguments.posonlyargs or arguments.args)[0]
        arguments = ast.parse(f"def f{_text(arguments)}: ...").body[0].args  # type: ignore[attr-defined]
        (arguments.posonlyargs or arguments.args).pop(0)
        assert first.arg in ("self", "cls")
    return _text(arguments) + (f" -> {ast.unparse(node.returns)}" if node.returns else "")


def _text(arguments: ast.arguments) -> str:
    return f"({ast.unparse(arguments)})"


def _docstring(node: Definition) -> str:
    return as_markdown(ast.get_docstring(node) or "")


def as_markdown(text: str) -> str:
    """Return a docstring as Markdown: examples become blocks of code, and signs of HTML are escaped."""
    parts = []
    for part in re.split(r"\n\s*\n", text.strip("\n")):
        if part.lstrip().startswith(">>>"):
            lines = part.split("\n")
            indent = min(len(line) - len(line.lstrip()) for line in lines)
            parts.append("```python\n" + "\n".join(line[indent:] for line in lines) + "\n```")
        elif part.startswith("    "):
            parts.append(part)
        else:
            parts.append(_escaped(part))
    return "\n\n".join(parts)


def _escaped(text: str) -> str:
    """Return text with asterisks, angle and square brackets escaped, except in code."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(piece if piece.startswith("`") else re.sub(r"(?<!\\)([*<\[\]])", r"\\\1", piece) for piece in pieces)


def _directive(kind: str, argument: str, body: str, depth: int) -> str:
    """Return a directive of MyST; the fence of an outer one (depth 1) is longer than those inside it."""
    fence = "`" * (4 + depth)
    return f"{fence}{{py:{kind}}} {' '.join(argument.split())}\n{body}\n{fence}"
