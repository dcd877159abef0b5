"""Functions of loops over arrays, translated from their Python source for LLVM by `llvmlite.ir`.

A translated function computes what Python computes with the same source, to the last bit: whole numbers have 64 bits
(53, where one meets a float), floats are those of Python, operations keep their order, and none is fused. It may call
others, which are translated with it.

The language: arguments are numbers, arrays of one dimension, and named tuples of numbers and arrays. Statements are
assignments, `if`, `while`, `for` over a range, `break`, `continue`, `return`. A tuple is assigned to several variables
at once, returned, or indexed where it is written. A truth value is a number. A comparison is of two numbers, or of
a number with those of a tuple (`in`). The functions `len`, `min`, `max`, `int`, `float`, `bool`, `math.exp` and
`math.log` may be called. No array is made, and no index counts from the end. A variable keeps the type of its first
number, or its array or named tuple; a result has the type of its annotation. The result of an operation that Python
refuses, such as a division by 0, is not defined.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
from collections.abc import Callable, Sequence
from functools import cache, reduce
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, get_type_hints

IrKind: TypeAlias = Any
"""`int` or `float`, the name of the type of an array's elements, or the names and kinds of a named tuple's fields."""

_OPERATIONS = {
    int: {"Add": "add", "Sub": "sub", "Mult": "mul", "BitAnd": "and_", "LShift": "shl", "RShift": "ashr"},
    float: {"Add": "fadd", "Sub": "fsub", "Mult": "fmul", "Div": "fdiv"},
}
_COMPARISONS = {"Eq": "==", "NotEq": "!=", "Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">="}


class _Llvm:
    """The types of LLVM, of `llvmlite.ir`: it is imported for the first function that is translated."""

    def __init__(self) -> None:
        from llvmlite import ir

        self.ir = ir
        self.whole, self.float, self.pointer = ir.IntType(64), ir.DoubleType(), ir.PointerType()
        self.types = {int: self.whole, float: self.float}
        self.elements = {
            "int64": (int, self.whole),
            "uint32": (int, ir.IntType(32)),
            "float64": (float, self.float),
        }


_llvm = cache(_Llvm)


class _Value(NamedTuple):
    """A value in LLVM: a number, or the address of words of 8 bytes, which do not change.

    The words of an array are the address of its elements and their number. Those of a named tuple are its numbers, and
    the two words of each array.
    """

    kind: IrKind
    of: Any


def translate(function: Callable[..., Any], kinds: tuple[IrKind, ...]) -> tuple[str, list[IrKind]]:
    """Return a module, in LLVM's text form, with `entry`, a function for these arguments; and the kinds of its results.

    Raises:
        NotImplementedError: The function is not of the language; the message shows where.
        OSError: Its source cannot be read.
    """
    module = _Module()
    entry, results = module.function(function, kinds)
    entry.name, entry.linkage = "entry", ""
    return str(module.ir), results


@cache
def _definitions(path: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


class _Module:
    """Functions that are translated together."""

    def __init__(self) -> None:
        self.ir = _llvm().ir.Module()
        self._functions: dict[Any, tuple[Any, list[IrKind]]] = {}
        self.unchanged = self.ir.add_metadata([])

    def function(self, function: Callable[..., Any], kinds: tuple[IrKind, ...]) -> tuple[Any, list[IrKind]]:
        """Translate a function for arguments of these kinds, once; return it with the kinds of its results."""
        if (function, kinds) not in self._functions:
            hint = get_type_hints(function)["return"]
            hints = [] if hint is type(None) else getattr(hint, "__args__", [hint])
            results = [int if each is bool else each for each in hints]
            types = [_llvm().types[kind] for kind in results]
            of_function = _llvm().ir.FunctionType(
                types[0] if len(types) == 1 else _llvm().ir.LiteralStructType(types),
                [_llvm().types.get(kind, _llvm().pointer) for kind in kinds],
            )
            made = _llvm().ir.Function(self.ir, of_function, f"{function.__name__}.{len(self._functions)}")
            made.linkage = "internal"
            self._functions[function, kinds] = made, results
            node = _definitions(function.__code__.co_filename)[function.__name__]
            _Translation(self, made, function.__globals__, results).run(node, kinds)
        return self._functions[function, kinds]

    def of_c(self, name: str, arguments: int) -> Any:
        """Return the function of C that Python calls too; LLVM may not put another in its place."""
        if name not in self.ir.globals:
            _llvm().ir.Function(
                self.ir, _llvm().ir.FunctionType(_llvm().float, [_llvm().float] * arguments), name
            ).attributes.add("nobuiltin")
        return self.ir.globals[name]


class _Translation:
    """One pass through the source of a function, with a method for each class of `ast`.

    Variables lie in memory. LLVM moves them into registers, and computes once what it sees repeated.
    """

    def __init__(self, module: _Module, function: Any, names: dict[str, Any], results: list[IrKind]) -> None:
        self._module, self._function, self._globals, self._results = module, function, names, results
        self._variables: dict[str, _Value] = {}  # a number's kind and address; an array or a named tuple itself
        self._loops: list[tuple[Any, Any]] = []  # where `continue` and `break` go
        self._begin = _llvm().ir.IRBuilder(function.append_basic_block())
        self._ir = _llvm().ir.IRBuilder(function.append_basic_block())

    def run(self, node: ast.FunctionDef, kinds: tuple[IrKind, ...]) -> None:
        """Translate a function."""
        first = self._ir.block
        for argument, kind, value in zip(node.args.args, kinds, self._function.args, strict=True):
            self._assign(argument.arg, _Value(kind, value))
        self._statements(node.body)
        if not self._ir.block.is_terminated:
            self._ir.unreachable() if self._results else self._return(())
        self._begin.branch(first)

    def _allocated(self, kind: IrKind) -> _Value:
        return _Value(kind, self._begin.alloca(_llvm().types[kind]))

    def _write(self, value: _Value, memory: _Value) -> None:
        self._ir.store(self._as(value, memory.kind), memory.of)

    def _read(self, memory: _Value) -> _Value:
        return _Value(memory.kind, self._ir.load(memory.of))

    def _assign(self, name: str, value: _Value) -> None:
        if value.kind in _llvm().types:
            if name not in self._variables:
                self._variables[name] = self._allocated(value.kind)
            self._write(value, self._variables[name])
        elif self._variables.setdefault(name, value) != value:
            raise TypeError("another array or named tuple")

    def _as(self, value: _Value, kind: IrKind) -> Any:
        """Return what LLVM has for a value as one of a kind; a whole number may become a float."""
        if value.kind is int and kind is float:
            return self._ir.sitofp(value.of, _llvm().float)
        if value.kind != kind:
            raise TypeError(f"{value.kind} as {kind}")
        return value.of

    def _word(self, words: _Value, at: int, kind: IrKind) -> _Value:
        place = self._ir.gep(words.of, [_whole(at)], source_etype=_llvm().whole)
        if kind in _llvm().elements:  # the words of an array, which are in place
            return _Value(kind, place)
        load = self._ir.load(place, typ=_llvm().types.get(kind, _llvm().pointer))
        load.set_metadata("invariant.load", self._module.unchanged)
        return _Value(kind, load)

    def _place(self, array: _Value, index: _Value) -> Any:
        """Return the address of an element of an array."""
        address = self._word(array, 0, None).of
        return self._ir.gep(address, [self._as(index, int)], source_etype=_llvm().elements[array.kind][1])

    def _truth(self, value: _Value) -> Any:
        return self._ir.icmp_signed("!=", self._as(value, int), _whole(0))

    def _whether(self, truth: Any) -> _Value:
        return _Value(int, self._ir.zext(truth, _llvm().whole))

    def _object(self, node: ast.expr) -> Any:
        """Return the constant or function that a name stands for in the module of the function."""
        if isinstance(node, ast.Attribute):
            return getattr(self._object(node.value), node.attr)
        return self._globals[node.id] if node.id in self._globals else getattr(builtins, node.id)  # type: ignore[attr-defined]

    def _visit(self, node: ast.AST) -> Any:
        try:
            return getattr(self, f"_on_{type(node).__name__.lower()}")(node)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise NotImplementedError(f"not of the language of compiled loops: {ast.unparse(node)}") from error

    # Statements

    def _statements(self, body: Sequence[ast.stmt]) -> None:
        for node in body:
            if not self._ir.block.is_terminated:
                self._visit(node)

    def _on_expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self._visit(node.value)

    def _on_assign(self, node: ast.Assign) -> None:
        (target,) = node.targets
        self._store(target, self._visit(node.value))

    def _on_augassign(self, node: ast.AugAssign) -> None:
        self._store(node.target, self._visit(ast.BinOp(node.target, node.op, node.value)))

    def _store(self, target: Any, value: Any) -> None:
        if isinstance(target, ast.Tuple):
            for each, element in zip(target.elts, value, strict=True):
                self._store(each, element)
        elif isinstance(target, ast.Subscript):
            array, index = self._visit(target.value), self._visit(target.slice)
            kind, element = _llvm().elements[array.kind]
            if element != _llvm().types[kind]:
                raise TypeError("elements of 32 bits do not change")
            self._ir.store(self._as(value, kind), self._place(array, index))
        else:
            self._assign(target.id, value)

    def _on_if(self, node: ast.If) -> None:
        with self._ir.if_else(self._truth(self._visit(node.test))) as branches:
            for branch, body in zip(branches, (node.body, node.orelse), strict=True):
                with branch:
                    self._statements(body)

    def _on_while(self, node: ast.While) -> None:
        self._loop(node, lambda: self._truth(self._visit(node.test)), lambda: None, lambda: None)

    def _on_for(self, node: ast.For) -> None:
        call: Any = node.iter
        if self._object(call.func) is not range:
            raise TypeError("another loop")
        bounds = list(call.args)
        step = ast.literal_eval(bounds.pop()) if len(bounds) == 3 else 1
        start, stop = [_constant(0), *map(self._visit, bounds)][-2:]
        counter = self._allocated(int)
        self._write(start, counter)

        def test() -> Any:
            return self._ir.icmp_signed("<" if step > 0 else ">", self._read(counter).of, stop.of)

        def begin() -> None:
            self._store(node.target, self._read(counter))

        def end() -> None:
            self._write(_Value(int, self._ir.add(self._read(counter).of, _whole(step))), counter)

        self._loop(node, test, begin, end)

    def _loop(
        self, node: ast.While | ast.For, test: Callable[[], Any], begin: Callable[[], None], end: Callable[[], None]
    ) -> None:
        if node.orelse:
            raise TypeError("else of a loop")
        head, body, again, after = (self._function.append_basic_block() for _ in range(4))
        self._ir.branch(head)
        self._ir.position_at_end(head)
        self._ir.cbranch(test(), body, after)
        self._ir.position_at_end(body)
        begin()
        self._loops.append((again, after))
        self._statements(node.body)
        self._loops.pop()
        if not self._ir.block.is_terminated:
            self._ir.branch(again)
        self._ir.position_at_end(again)
        end()
        self._ir.branch(head)
        self._ir.position_at_end(after)

    def _on_break(self, node: ast.Break) -> None:
        self._ir.branch(self._loops[-1][1])

    def _on_continue(self, node: ast.Continue) -> None:
        self._ir.branch(self._loops[-1][0])

    def _on_return(self, node: ast.Return) -> None:
        value = () if node.value is None else self._visit(node.value)
        self._return((value,) if isinstance(value, _Value) else value)

    def _return(self, values: tuple[_Value, ...]) -> None:
        found = [self._as(value, kind) for value, kind in zip(values, self._results, strict=True)]
        whole = (
            found[0] if len(found) == 1 else _llvm().ir.Constant(self._function.ftype.return_type, _llvm().ir.Undefined)
        )
        for at, part in enumerate(found if len(found) > 1 else ()):
            whole = self._ir.insert_value(whole, part, at)
        self._ir.ret(whole)

    # Values

    def _on_constant(self, node: ast.Constant) -> Any:
        return _constant(node.value)

    def _on_name(self, node: ast.Name) -> Any:
        found = self._variables.get(node.id) or _constant(self._object(node))
        return self._read(found) if node.id in self._variables and found.kind in _llvm().types else found

    def _on_attribute(self, node: ast.Attribute) -> Any:
        if isinstance(node.value, ast.Name) and node.value.id not in self._variables:
            return _constant(self._object(node))
        record = self._visit(node.value)
        names, kinds = zip(*record.kind, strict=True)
        place = names.index(node.attr)
        return self._word(record, sum(1 if kind in _llvm().types else 2 for kind in kinds[:place]), kinds[place])

    def _on_tuple(self, node: ast.Tuple) -> tuple[_Value, ...]:
        return tuple(map(self._visit, node.elts))

    def _on_subscript(self, node: ast.Subscript) -> Any:
        whole, index = self._visit(node.value), self._visit(node.slice)
        if isinstance(whole, _Value):
            kind, element = _llvm().elements[whole.kind]
            load = self._ir.load(self._place(whole, index), typ=element)
            return _Value(kind, load if element == _llvm().types[kind] else self._ir.zext(load, _llvm().whole))
        found = whole[-1]
        for at, each in enumerate(whole[:-1]):
            is_here = self._ir.icmp_signed("==", index.of, _whole(at))
            found = _Value(each.kind, self._ir.select(is_here, each.of, self._as(found, each.kind)))
        return found

    def _on_unaryop(self, node: ast.UnaryOp) -> _Value:
        value, name = self._visit(node.operand), type(node.op).__name__
        if name == "Not":
            return self._whether(self._ir.not_(self._truth(value)))
        return _Value(value.kind, getattr(self._ir, {"USub": {int: "neg", float: "fneg"}}[name][value.kind])(value.of))

    def _on_binop(self, node: ast.BinOp) -> _Value:
        name, left, right = type(node.op).__name__, self._visit(node.left), self._visit(node.right)
        kind = float if name == "Div" or float in (left.kind, right.kind) else int
        one, other = self._as(left, kind), self._as(right, kind)
        if kind is float and name == "Pow":
            return _Value(kind, self._ir.call(self._module.of_c("pow", 2), [one, other]))
        if kind is int and name in ("FloorDiv", "Mod"):
            return _Value(kind, self._divided(name, one, other))
        return _Value(kind, getattr(self._ir, _OPERATIONS[kind][name])(one, other))

    def _divided(self, name: str, one: Any, other: Any) -> Any:
        """Divide whole numbers: the rest has the sign of the divisor, where that of LLVM has that of the dividend."""
        rest = self._ir.srem(one, other)
        differs = self._ir.icmp_signed("<", self._ir.xor(rest, other), _whole(0))
        is_below = self._ir.and_(differs, self._ir.icmp_signed("!=", rest, _whole(0)))
        if name == "Mod":
            return self._ir.select(is_below, self._ir.add(rest, other), rest)
        return self._ir.sub(self._ir.sdiv(one, other), self._ir.zext(is_below, _llvm().whole))

    def _compared(self, name: str, left: _Value, right: _Value) -> Any:
        kind = float if float in (left.kind, right.kind) else int
        one, other = self._as(left, kind), self._as(right, kind)
        of_floats = self._ir.fcmp_unordered if name == "NotEq" else self._ir.fcmp_ordered  # NaN differs from all
        return (self._ir.icmp_signed if kind is int else of_floats)(_COMPARISONS[name], one, other)

    def _on_compare(self, node: ast.Compare) -> _Value:
        (operation,), (comparator,) = node.ops, node.comparators
        left, right = self._visit(node.left), self._visit(comparator)
        if not isinstance(operation, ast.In):
            return self._whether(self._compared(type(operation).__name__, left, right))
        return self._whether(reduce(self._ir.or_, [self._compared("Eq", left, each) for each in right]))

    def _on_boolop(self, node: ast.BoolOp) -> _Value:
        holds = self._allocated(int)
        self._write(self._visit(node.values[0]), holds)
        for other in node.values[1:]:
            known = self._truth(self._read(holds))
            with self._ir.if_then(known if isinstance(node.op, ast.And) else self._ir.not_(known)):
                self._write(self._visit(other), holds)
        return self._read(holds)

    def _on_ifexp(self, node: ast.IfExp) -> _Value:
        with self._ir.if_else(self._truth(self._visit(node.test))) as (yes, no):
            with yes:
                value = self._visit(node.body)
                found = self._allocated(value.kind)
                self._write(value, found)
            with no:
                self._write(self._visit(node.orelse), found)
        return self._read(found)

    def _on_call(self, node: ast.Call) -> Any:
        function, arguments = self._object(node.func), [self._visit(each) for each in node.args]
        if node.keywords:
            raise TypeError("an argument by name")
        if inspect.isfunction(function):
            called, results = self._module.function(function, tuple(each.kind for each in arguments))
            found = self._ir.call(called, [each.of for each in arguments])
            if len(results) == 1:
                return _Value(results[0], found)
            return tuple(_Value(kind, self._ir.extract_value(found, at)) for at, kind in enumerate(results))
        value, *others = arguments
        if function in (min, max):
            for each in others:
                kind = float if float in (each.kind, value.kind) else int
                is_beyond = self._compared("Lt" if function is min else "Gt", each, value)
                value = _Value(kind, self._ir.select(is_beyond, self._as(each, kind), self._as(value, kind)))
            return value
        if function is len:
            return self._word(value, 1, int)
        if function is int and value.kind is float:
            return _Value(int, self._ir.fptosi(value.of, _llvm().whole))
        if function is bool:
            return self._whether(self._truth(value))
        if function in (math.exp, math.log):
            return _Value(float, self._ir.call(self._module.of_c(function.__name__, 1), [self._as(value, float)]))
        return _Value(function, self._as(value, {int: int, float: float}[function]))


def _whole(number: int) -> Any:
    return _llvm().ir.Constant(_llvm().whole, number)


def _constant(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_constant, value))
    kind = {int: int, bool: int, float: float}[type(value)]
    return _Value(kind, _llvm().ir.Constant(_llvm().types[kind], kind(value)))
