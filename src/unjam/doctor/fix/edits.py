"""The edits: each removes one cause by changing one file, or refuses."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence

from unjam.doctor.fix.source_edit import CannotEdit, SourceEdit, call_name

_LOADERS = ("DataLoader", "StatefulDataLoader")


def make_per_worker(edit: SourceEdit, line: int) -> None:
    """`x = open(path)` becomes `x = unjam.per_worker(open, path)`."""
    call = _assigned_call(edit, line)
    given = [edit.source(call.func), *(edit.source(one) for one in call.args)]
    given += [
        f"{one.arg}={edit.source(one.value)}" if one.arg else f"**{edit.source(one.value)}" for one in call.keywords
    ]
    edit.replace(call, f"unjam.per_worker({', '.join(given)})")
    edit.add_import("import unjam")


def seed_per_worker(edit: SourceEdit, line: int) -> None:
    """Seed a generator in the worker that uses it."""
    call = _assigned_call(edit, line)
    name, module = call_name(call), edit.source(call.func)
    makes = {
        "default_rng": f"{module}(torch.initial_seed())",
        "RandomState": f"{module}(torch.initial_seed() % 2**32)",
        "Random": f"{module}(torch.initial_seed())",
        "Generator": f"{module}().manual_seed(torch.initial_seed())",
        "manual_seed": "torch.Generator().manual_seed(torch.initial_seed())",
    }
    if name not in makes:
        raise CannotEdit(f"{name} is not a generator that can be seeded automatically")
    edit.replace(call, f"unjam.per_worker(lambda: {makes[name]})")
    edit.add_import("import torch")
    edit.add_import("import unjam")


def share_list(edit: SourceEdit, line: int) -> None:
    """`self.items = [...]` becomes `self.items = unjam.SharedList([...])`."""
    statement = edit.statement(line)
    if not isinstance(statement, ast.Assign):
        raise CannotEdit(f"line {line} does not set the list")
    edit.replace(statement.value, f"unjam.SharedList({edit.source(statement.value)})")
    edit.add_import("import unjam")


def set_option(edit: SourceEdit, line: int, name: str, value: str) -> None:
    """Set an option of the loader that a line creates."""
    call = _loader_call(edit, line)
    for one in call.keywords:
        if one.arg == name:
            edit.replace(one.value, value)
            return
    if any(one.arg is None for one in call.keywords):
        raise CannotEdit("the loader's options come from a dictionary")
    last = [*call.args, *(one.value for one in call.keywords)]
    if not last:
        raise CannotEdit("the loader has no arguments")
    end = max(last, key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0))
    edit.replace(end, f"{edit.source(end)}, {name}={value}")


def add_main_guard(edit: SourceEdit, line: int) -> None:
    """Put the statement that uses the loader, and everything after it, under a main guard."""
    top = next((node for node in edit.tree.body if node.lineno <= line <= (node.end_lineno or node.lineno)), None)
    if top is None or isinstance(top, (ast.FunctionDef, ast.ClassDef)):
        raise CannotEdit("the loader is not used at module level")
    after = edit.tree.body[edit.tree.body.index(top) :]
    if any(isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)) for node in after):
        raise CannotEdit("the statement is followed by functions or classes that workers must be able to import")
    edit.indent_from(top, 'if __name__ == "__main__":')


def raise_again(edit: SourceEdit, line: int) -> None:
    """Let a handler raise instead of hiding the exception."""
    for node in edit.walk():
        if isinstance(node, ast.ExceptHandler) and node.lineno == line:
            first, *rest = node.body
            edit.replace(first, "raise")
            for one in rest:
                edit.replace(one, "pass")
            return
    raise CannotEdit(f"line {line} is not an except clause")


def copy_yielded_list(edit: SourceEdit, class_name: str) -> None:
    """Let a batch sampler yield a copy of its list."""
    found = [
        node.value
        for node in ast.walk(edit.named_class(class_name))
        if isinstance(node, ast.Yield) and isinstance(node.value, (ast.Name, ast.Attribute))
    ]
    if not found:
        raise CannotEdit(f"{class_name} does not yield a named list")
    for one in found:
        edit.replace(one, f"list({edit.source(one)})")


def copy_returned(edit: SourceEdit, class_name: str, attribute: str) -> None:
    """Copy what a method returns from a buffer."""
    found = []
    for node in ast.walk(edit.named_class(class_name)):
        if isinstance(node, (ast.Return, ast.Yield)) and node.value is not None:
            reads = _reads(node.value, attribute)
            # self.buffer.clone() is a copy already
            found += [one for one in reads if not isinstance(next(edit.above(one), None), ast.Attribute)]
    if not found:
        raise CannotEdit(f"{class_name} does not return {attribute}")
    _deep_copy(edit, found)


def _deep_copy(edit: SourceEdit, found: Sequence[ast.expr]) -> None:
    for one in found:
        edit.replace(one, f"copy.deepcopy({edit.source(one)})")
    edit.add_import("import copy")


def copy_held(edit: SourceEdit, class_name: str, attribute: str) -> None:
    """Create samples from a copy of what the dataset holds."""
    found = [
        node
        for node in ast.walk(edit.named_class(class_name))
        if isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Load)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == attribute
        and not _in_init(edit, node)
    ]
    if not found:
        raise CannotEdit(f"{class_name} does not index {attribute}")
    _deep_copy(edit, found)


def call_set_epoch(edit: SourceEdit, line: int) -> None:
    """Call set_epoch of the loader's sampler at the top of the loop over epochs."""
    inner = next((n for n in edit.walk() if isinstance(n, ast.For) and n.lineno == line), None)
    if inner is None:
        raise CannotEdit(f"line {line} is not a loop over a loader")
    loader = inner.iter
    while isinstance(loader, ast.Call) and loader.args:  # enumerate(loader), tqdm(loader)
        loader = loader.args[0]
    if not isinstance(loader, (ast.Name, ast.Attribute)):
        raise CannotEdit("the loader is not a named variable there")
    outer = next((n for n in edit.above(inner) if isinstance(n, ast.For) and isinstance(n.target, ast.Name)), None)
    if outer is None or not isinstance(outer.target, ast.Name):
        raise CannotEdit("the loop over epochs is in another function")
    number = outer.target.id
    if number == "_":
        edit.replace(outer.target, "epoch")
        number = "epoch"
    edit.insert_before(outer.body[0], [f"{edit.source(loader)}.sampler.set_epoch({number})"])


def shard_stream(edit: SourceEdit, class_name: str) -> None:
    """Let each worker of each rank take its share of a stream."""
    method = _method(edit, class_name, "__iter__")
    begin = edit.source(method).partition("\n")[0]
    if "def __iter__(" not in begin:
        raise CannotEdit("__iter__ has an unusual signature")
    edit.replace(method, edit.source(method).replace("def __iter__(", "def _whole(", 1))
    edit.insert_after(
        method,
        [
            "",
            "def __iter__(self):",
            "    info = torch.utils.data.get_worker_info()",
            "    worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)",
            "    ready = torch.distributed.is_available() and torch.distributed.is_initialized()",
            "    rank, ranks = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if ready else (0, 1)",
            "    return itertools.islice(self._whole(), rank * workers + worker, None, ranks * workers)",
        ],
    )
    for line in ("import itertools", "import torch", "import torch.distributed", "import torch.utils.data"):
        edit.add_import(line)


def _method(edit: SourceEdit, class_name: str, name: str) -> ast.FunctionDef:
    for node in edit.named_class(class_name).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    raise CannotEdit(f"{class_name} has no {name}")


def load_batches_by_item(edit: SourceEdit, class_name: str) -> None:
    """Add a __getitems__ that uses the class's own __getitem__."""
    method = _method(edit, class_name, "__getitem__")
    edit.insert_after(method, ["", "def __getitems__(self, indices):", "    return [self[index] for index in indices]"])


def name_lambda(edit: SourceEdit, line: int) -> None:
    """Turn a lambda into a function at module level."""
    statement = edit.statement(line)
    found = [node for node in ast.walk(statement) if isinstance(node, ast.Lambda)]
    if len(found) != 1:
        raise CannotEdit(f"line {line} has {len(found)} lambdas")
    inner = found[0]
    given = {one.arg for one in [*inner.args.args, *inner.args.kwonlyargs, *inner.args.posonlyargs]}
    used = {n.id for n in ast.walk(inner.body) if isinstance(n, ast.Name)}
    known = given | set(dir(builtins)) | _top_names(edit)
    if used - known:
        raise CannotEdit(f"the lambda uses {', '.join(sorted(used - known))} of the enclosing function")
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    base = getattr(target, "attr", None) or getattr(target, "id", None) or "function"
    name = f"_{base.strip('_')}"
    while name in _top_names(edit):
        name += "_"
    top = next(node for node in edit.tree.body if node.lineno <= line <= (node.end_lineno or node.lineno))
    edit.insert_before(
        top, [f"def {name}({ast.unparse(inner.args)}):", f"    return {edit.source(inner.body)}", "", ""]
    )
    edit.replace(inner, name)


def use_unjam(edit: SourceEdit) -> None:
    """Import DataLoader from unjam."""
    for node in edit.walk():
        if isinstance(node, ast.ImportFrom) and node.module in ("torch.utils.data", "torch.utils.data.dataloader"):
            mine = [one for one in node.names if one.name == "DataLoader"]
            rest = [one for one in node.names if one.name != "DataLoader"]
            if not mine:
                continue
            own = "from unjam import DataLoader" + (f" as {mine[0].asname}" if mine[0].asname else "")
            names = ", ".join(one.name + (f" as {one.asname}" if one.asname else "") for one in rest)
            edit.replace(node, f"from {node.module} import {names}\n{edit.indent(node)}{own}" if rest else own)
            return
    raise CannotEdit("the file does not import DataLoader by name")


# -- parts -----------------------------------------------------------------------------------------


def _assigned_call(edit: SourceEdit, line: int) -> ast.Call:
    statement = edit.statement(line)
    if (
        not isinstance(statement, ast.Assign)
        or len(statement.targets) != 1
        or not isinstance(statement.value, ast.Call)
    ):
        raise CannotEdit(f"line {line} is not an assignment from one call")
    return statement.value


def _loader_call(edit: SourceEdit, line: int) -> ast.Call:
    found = [
        node
        for node in edit.walk()
        if isinstance(node, ast.Call) and call_name(node) in _LOADERS and node.lineno <= line <= (node.end_lineno or 0)
    ]
    if len(found) != 1:
        raise CannotEdit(f"line {line} creates {len(found)} loaders")
    return found[0]


def _reads(value: ast.expr, attribute: str) -> list[ast.Attribute]:
    return [
        node
        for node in ast.walk(value)
        if isinstance(node, ast.Attribute) and node.attr == attribute and isinstance(node.ctx, ast.Load)
    ]


def _in_init(edit: SourceEdit, node: ast.AST) -> bool:
    return any(isinstance(one, ast.FunctionDef) and one.name == "__init__" for one in edit.above(node))


def _top_names(edit: SourceEdit) -> set[str]:
    found: set[str] = set()
    for node in edit.tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(one.asname or one.name).partition(".")[0] for one in node.names}
        elif isinstance(node, ast.Assign):
            found |= {part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    return found
