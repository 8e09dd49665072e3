"""What a Python file defines, read without importing it: it may need packages of the image."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, Signature
from pathlib import Path

# A module that uses one of these may have names that its text does not show.
_DYNAMIC = {"globals", "exec", "setattr", "__getattr__"}
_MOST_IMPORTS_FOLLOWED = 8
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def find_module(root: Path, name: str) -> Path | None:
    """The file of a module below `root`; None if it has none there."""
    path = root.joinpath(*name.split("."))
    files = (path.with_name(f"{path.name}.py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def modules_beside(root: Path, name: str) -> list[str]:
    """The modules of the package that `name` would be in."""
    package = name.rpartition(".")[0]
    folder = root.joinpath(*package.split("."))
    prefix = f"{package}." if package else ""
    return [f"{prefix}{file.stem}" for file in sorted(folder.glob("*.py")) if file.stem[0] != "_"]


@dataclass(frozen=True)
class ModuleSource:
    """A module below `root`, parsed. Raises SyntaxError or ValueError if it is not Python."""

    root: Path
    name: str
    file: Path

    @cached_property
    def _tree(self) -> ast.Module:
        return ast.parse(self.file.read_bytes(), str(self.file))

    @cached_property
    def _definitions(self) -> dict[str, list[ast.stmt]]:
        """Every name that the module gets at its top level, and the statements that define it."""
        found: dict[str, list[ast.stmt]] = {}
        for statement in _statements(self._tree.body):
            for name in _names(statement):
                found.setdefault(name, []).append(statement)
        return found

    @property
    def names(self) -> list[str]:
        return [name for name in self._definitions if not name.startswith("_")]

    @cached_property
    def shows_all(self) -> bool:
        """Whether the module has no names but those that its text shows."""
        words = {node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name)}
        return not _DYNAMIC.intersection(words | {*self._definitions}) and "*" not in (
            self._definitions
        )

    def has(self, name: str) -> bool:
        return name in self._definitions or not self.shows_all

    def signature(self, name: str, follow: int = _MOST_IMPORTS_FOLLOWED) -> Signature | None:
        """How a function or class is called; None if the text does not tell."""
        match self._definitions.get(name):
            case [ast.FunctionDef() as function] if not function.decorator_list:
                return _signature(function)
            case [ast.ClassDef() as definition]:
                return self._class_signature(definition, follow)
            case [ast.ImportFrom() as statement] if follow:
                return self._imported_signature(statement, name, follow - 1)
        return None

    def _class_signature(self, definition: ast.ClassDef, follow: int) -> Signature | None:
        if definition.decorator_list or definition.keywords:
            return None
        methods = {each.name: each for each in definition.body if isinstance(each, _FUNCTIONS)}
        start = methods.get("__init__")
        if "__new__" in methods or (start and start.decorator_list):
            return None
        if start:
            signature = _signature(start)
            return signature.replace(parameters=list(signature.parameters.values())[1:])
        match definition.bases:
            case []:
                return Signature()
            case [ast.Name(id=base)] if follow:
                return self.signature(base, follow - 1)
        return None

    def _imported_signature(
        self, statement: ast.ImportFrom, name: str, follow: int
    ) -> Signature | None:
        original = next(a.name for a in statement.names if (a.asname or a.name) == name)
        module = statement.module or ""
        if statement.level:
            is_package = self.file.name == "__init__.py"
            parts = self.name.split(".")
            kept = parts[: len(parts) - statement.level + is_package]
            module = ".".join([*kept, *([module] if module else [])])
        file = find_module(self.root, module) if module else None
        if file is None:
            return None
        return ModuleSource(self.root, module, file).signature(original, follow)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, also those inside `if`, `try`, `with` and loops."""
    for statement in body:
        yield statement
        if not isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
            inner = ast.iter_child_nodes(statement)
            branches = (ast.ExceptHandler, ast.match_case)
            blocks = [each.body for each in inner if isinstance(each, branches)]
            blocks += [getattr(statement, part, []) for part in ("body", "orelse", "finalbody")]
            for block in blocks:
                yield from _statements(block)


def _names(statement: ast.stmt) -> Iterator[str]:
    """The names that one statement defines, `*` for those of another module."""
    if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, (ast.Import, ast.ImportFrom)):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
    else:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


def _signature(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Signature:
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    first_default = len(positional) - len(given.defaults)
    found = [
        Parameter(
            argument.arg,
            Parameter.POSITIONAL_ONLY
            if place < len(given.posonlyargs)
            else Parameter.POSITIONAL_OR_KEYWORD,
            default=None if place >= first_default else inspect.Parameter.empty,
        )
        for place, argument in enumerate(positional)
    ]
    if given.vararg:
        found.append(Parameter(given.vararg.arg, Parameter.VAR_POSITIONAL))
    found += [
        Parameter(
            argument.arg,
            Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if default is None else None,
        )
        for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    if given.kwarg:
        found.append(Parameter(given.kwarg.arg, Parameter.VAR_KEYWORD))
    return Signature(found)
