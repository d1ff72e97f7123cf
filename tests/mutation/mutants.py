"""Small faults, one at a time: each mutant is a module's syntax tree in which one thing is different."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

_COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_COMPUTED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
_CALLED = {"max": "min", "min": "max", "any": "all", "all": "any", "sorted": "list"}
_NOT_RUN = {"annotation", "returns", "decorator_list", "type_comment", "bases"}
_OWNERS = {"resource_id", "owner"}  # an argument of such a name is also tried as None: nobody is checked


@dataclass(frozen=True, slots=True)
class Mutant:
    """`code` is the whole module; `line` and `what` tell where it differs, and how."""

    line: int
    what: str
    code: CodeType


def mutants(source: str, path: str, functions: frozenset[str] | None = None) -> Iterator[Mutant]:
    """All mutants of a module; only of these functions, methods and constants if they are named."""
    tree = ast.parse(source)
    roots = [tree] if functions is None else _named(tree, functions)
    for parent, field, place in (slot for root in roots for slot in _slots(root)):
        node = _get(parent, field, place)
        for changed in _changes(node):
            before = ast.unparse(node)
            _set(parent, field, place, changed)
            code = compile(ast.fix_missing_locations(tree), path, "exec")
            what = f"{before} -> {ast.unparse(changed) or 'nothing'}".replace("\n", " ")
            yield Mutant(getattr(node, "lineno", 0), what, code)
            _set(parent, field, place, node)


def _named(tree: ast.Module, names: frozenset[str]) -> list[ast.AST]:
    found = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    found |= {n.targets[0].id: n for n in tree.body if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)}
    if missing := names - found.keys():
        raise LookupError(f"nothing is named {', '.join(sorted(missing))}")
    return [found[name] for name in sorted(names)]


def _slots(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    """The places of everything below a node that runs, and not only says: no annotations, docstrings and messages."""
    for field, value in ast.iter_fields(node):
        if field in _NOT_RUN:
            continue
        for place, child in enumerate(value) if isinstance(value, list) else ((None, value),):
            if isinstance(child, ast.AST) and not _only_says(child):
                yield node, field, place
                yield from () if isinstance(child, ast.Raise) else _slots(child)


def _only_says(node: ast.AST) -> bool:
    says = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    says |= isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal"
    return says or isinstance(node, ast.Import | ast.ImportFrom) or "TYPE_CHECKING" in ast.unparse(node)[:16]


def _get(parent: ast.AST, field: str, place: int | None) -> ast.AST:
    value = getattr(parent, field)
    return value if place is None else value[place]


def _set(parent: ast.AST, field: str, place: int | None, node: ast.AST) -> None:
    if place is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[place] = node


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(left, ops, comparators):
            for n, op in enumerate(ops):
                yield ast.Compare(left, [*ops[:n], _COMPARED[type(op)](), *ops[n + 1 :]], comparators)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for n in range(len(values)):
                rest = [*values[:n], *values[n + 1 :]]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.BinOp(left, op, right) if type(op) in _COMPUTED:
            yield ast.BinOp(left, _COMPUTED[type(op)](), right)
        case ast.AugAssign(target, op, value) if type(op) in _COMPUTED:
            yield ast.AugAssign(target, _COMPUTED[type(op)](), value)
        case ast.Constant(value):
            yield from map(ast.Constant, _constants(value))
        case ast.IfExp(test, body, orelse):
            yield body
            yield orelse
        case ast.If(test, body, orelse):
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Return(value) if value is not None and ast.unparse(value) != "None":
            yield ast.Return(ast.Constant(None))
        case ast.Raise() | ast.Break() | ast.Continue() | ast.Expr(ast.Call() | ast.Await()):
            yield ast.Pass()
        case ast.Dict(keys, values):
            for n in range(len(keys)):
                yield ast.Dict([*keys[:n], *keys[n + 1 :]], [*values[:n], *values[n + 1 :]])
        case ast.comprehension(target, iter, ifs, is_async):
            for n in range(len(ifs)):
                yield ast.comprehension(target, iter, [*ifs[:n], *ifs[n + 1 :]], is_async)
        case ast.Call(function, args, keywords):
            if isinstance(function, ast.Name) and function.id in _CALLED:
                yield ast.Call(ast.Name(_CALLED[function.id], ast.Load()), args, keywords)
            for n, given in enumerate(keywords):
                yield ast.Call(function, args, [*keywords[:n], *keywords[n + 1 :]])
                if given.arg in _OWNERS:
                    nobody = ast.keyword(given.arg, ast.Constant(None))
                    yield ast.Call(function, args, [*keywords[:n], nobody, *keywords[n + 1 :]])
        case _:
            pass


def _constants(value: object) -> Iterator[object]:
    """Other values: a condition without one of its clauses; of texts only those that no person reads."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
        yield value - 1
    elif isinstance(value, str):
        clauses = value.split(" AND ")
        if len(clauses) > 1:
            yield from (" AND ".join([*clauses[:n], *clauses[n + 1 :]]) for n in range(len(clauses)))
        elif " " not in value.strip():
            yield f"{value}~"
