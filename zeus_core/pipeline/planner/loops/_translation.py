"""Functions of loops over arrays, translated from their Python source to LLVM's text form.

A translated function computes what Python computes with the same source, to the last bit: whole numbers have 64 bits
(53, where one meets a float), floats are those of Python, operations keep their order, and none is fused. It may call
others, which are translated with it. numba does the same and far more, and takes seconds for each function, where this
takes milliseconds.

The language: arguments are numbers, arrays of one dimension, and named tuples of these. Statements are assignments,
`if`, `while`, `for` over a range or a tuple, `break`, `continue`, `return`; values are numbers, tuples and arrays; a
comparison is of two values; of Python's functions there are `len`, `min`, `max`, `int`, `float`, `bool`, `math.exp` and
`math.log`. No array is made, and no index counts from the end. The result of an operation that Python refuses, such as
a division by 0, is not defined. All else raises `NotImplementedError`.

The type of a variable is the common one of all that it is assigned: a function is translated again until types stay.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zeus_core.pipeline.planner.loops._llvm_function import DECLARATIONS, FunctionText, structure
from zeus_core.pipeline.planner.loops._llvm_values import (
    BOOL,
    FLOAT,
    INT,
    NONE,
    Type,
    Value,
    common_type,
    constant,
    elements,
    joined,
    parts,
    places,
)


def translate(function: Callable[..., Any], types: tuple[Type, ...]) -> tuple[str, Type]:
    """Return a module, in LLVM's text form, with a function for arguments of these types, and the type of its result.

    Its function `entry` has two arguments: addresses of the parts of all arguments, 8 bytes each, and of the result.

    Raises:
        NotImplementedError: The function is not of the language.
        OSError: Its source cannot be read.
    """
    module = _Module()
    name, result = module.function(function, types)
    entry = FunctionText()
    found = entry.called(name, result, [entry.words("%in", kind, at) for at, kind in places(types)])
    entry.write_words(found, "%out")
    entry.add("ret void")
    return "\n".join([*module.texts, entry.text("define void @entry(ptr %in, ptr %out)"), DECLARATIONS]), result


@cache
def _definitions(path: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


class _Translated(NamedTuple):
    name: str
    result: Type


class _Module:
    """Functions that are translated together."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._functions: dict[tuple[Callable[..., Any], tuple[Type, ...]], _Translated] = {}

    def function(self, function: Callable[..., Any], types: tuple[Type, ...]) -> _Translated:
        """Translate a function for arguments of these types, once."""
        if (function, types) not in self._functions:
            self._functions[function, types] = self._translated(function, types)
        return self._functions[function, types]

    def _translated(self, function: Callable[..., Any], types: tuple[Type, ...]) -> _Translated:
        node = _definitions(function.__code__.co_filename)[function.__name__]
        variables: dict[str, Type] = {}
        before = None
        while variables != before:
            before = dict(variables)
            text = _Translation(self, function.__globals__, variables)
            text.run(node, types)
        name, result = f"@{function.__name__}.{len(self.texts)}", variables[_RESULT]
        listed = ", ".join(f"{part} %a{at}" for at, part in enumerate(parts(types)))
        self.texts.append(text.text(f"define internal {structure(result)} {name}({listed})"))
        return _Translated(name, result)


_RESULT = "return"  # among the types of variables, that of the result: no variable has this name


class _Translation(FunctionText):
    """One pass through the source of a function, with a method for each class of `ast`."""

    def __init__(self, module: _Module, names: dict[str, Any], variables: dict[str, Type]) -> None:
        super().__init__()
        self._module, self._globals, self._types = module, names, variables
        self._memory: dict[str, Value] = {}  # of variables
        self._loops: list[tuple[str, str]] = []  # where `continue` and `break` go

    def run(self, node: ast.FunctionDef, types: tuple[Type, ...]) -> None:
        """Translate a function."""
        for argument, (at, kind) in zip(node.args.args, places(types), strict=True):
            self._assign(argument.arg, Value(kind, tuple(f"%a{at + n}" for n in range(len(parts(kind))))))
        self._statements(node.body)
        if not self.is_over:
            self._return(NONE)  # which else would join the type of the result

    def _assign(self, name: str, value: Value) -> None:
        kind = self._types[name] = common_type([self._types.get(name, value.type), value.type])
        if name not in self._memory or self._memory[name].type != kind:
            self._memory[name] = self.allocated(kind)
        self.write(self.converted(value, kind), self._memory[name])

    def _return(self, value: Value) -> None:
        kind = self._types[_RESULT] = common_type([self._types.get(_RESULT, value.type), value.type])
        self.ret(self.converted(value, kind))

    def _object(self, node: ast.expr) -> Any:
        """Return the constant or function that a name stands for in the module of the function."""
        if isinstance(node, ast.Attribute):
            return getattr(self._object(node.value), node.attr)
        if isinstance(node, ast.Name):
            return self._globals[node.id] if node.id in self._globals else getattr(builtins, node.id)
        raise NotImplementedError(ast.unparse(node))

    def _visit(self, node: ast.AST) -> Any:
        method = getattr(self, f"_on_{type(node).__name__.lower()}", None)
        if method is None:
            raise NotImplementedError(ast.unparse(node))
        return method(node)

    # Statements

    def _statements(self, body: Sequence[ast.stmt]) -> None:
        for node in body:
            if not self.is_over:
                self._visit(node)

    def _on_expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self._visit(node.value)

    def _on_assign(self, node: ast.Assign) -> None:
        value = self._visit(node.value)
        for target in node.targets:
            self._store(target, value)

    def _on_augassign(self, node: ast.AugAssign) -> None:
        self._store(node.target, self._visit(ast.BinOp(node.target, node.op, node.value)))

    def _store(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self._assign(target.id, value)
        elif isinstance(target, ast.Tuple):
            for each, element in zip(target.elts, elements(value), strict=True):
                self._store(each, element)
        elif isinstance(target, ast.Subscript):
            self.set_item(self._visit(target.value), self._visit(target.slice), value)
        else:
            raise NotImplementedError(ast.unparse(target))

    def _on_if(self, node: ast.If) -> None:
        yes, no, after = self.new_blocks(3)
        self.branch(self.truth(self._visit(node.test)), yes, no)
        for label, body in ((yes, node.body), (no, node.orelse)):
            self.go_on_at(label)
            self._statements(body)
            self.jump(after)
        self.go_on_at(after)

    def _on_while(self, node: ast.While) -> None:
        test, body, after = self.new_blocks(3)
        self.jump(test)
        self.go_on_at(test)
        condition = self.truth(self._visit(node.test))
        self.jump(body) if condition == "true" else self.branch(condition, body, after)
        self.go_on_at(body)
        self._loop(node, test, after)

    def _loop(self, node: ast.While | ast.For, again: str, after: str) -> None:
        if node.orelse:
            raise NotImplementedError("else of a loop")
        self._loops.append((again, after))
        self._statements(node.body)
        self._loops.pop()
        self.jump(again)
        self.go_on_at(after)

    def _on_for(self, node: ast.For) -> None:
        step, values = 1, None
        if isinstance(node.iter, ast.Call) and self._object(node.iter.func) is range:
            bounds = [self._visit(each) for each in node.iter.args]
            step = int(bounds.pop().parts[0]) if len(bounds) == 3 else step
        else:
            values = self._visit(node.iter)
            bounds = [constant(len(values.type))]
        start, stop = (self.converted(each, INT) for each in [constant(0), *bounds][-2:])
        counter = self.allocated(INT)
        self.write(start, counter)
        test, body, again, after = self.new_blocks(4)
        self.jump(test)
        self.go_on_at(test)
        at = self.read(counter)
        self.branch(self.compared("Lt" if step > 0 else "Gt", at, stop), body, after)
        self.go_on_at(body)
        self._store(node.target, at if values is None else self.item(values, at))
        self._loop(node, again, after)
        self.go_on_at(again)
        self.write(self.operation("Add", at, constant(step)), counter)
        self.jump(test)
        self.go_on_at(after)

    def _on_break(self, node: ast.Break) -> None:
        self.jump(self._loops[-1][1])

    def _on_continue(self, node: ast.Continue) -> None:
        self.jump(self._loops[-1][0])

    def _on_return(self, node: ast.Return) -> None:
        self._return(NONE if node.value is None else self._visit(node.value))

    # Values

    def _on_constant(self, node: ast.Constant) -> Value:
        return constant(node.value)

    def _on_name(self, node: ast.Name) -> Value:
        return self.read(self._memory[node.id]) if node.id in self._memory else constant(self._object(node))

    def _on_attribute(self, node: ast.Attribute) -> Value:
        if isinstance(node.value, ast.Name) and node.value.id not in self._memory:
            return constant(self._object(node))
        record = self._visit(node.value)
        at, kind = places(record.type.types)[record.type.names.index(node.attr)]
        return self.words(record.parts[0], kind, at)

    def _on_tuple(self, node: ast.Tuple) -> Value:
        return joined([self._visit(each) for each in node.elts])

    def _on_subscript(self, node: ast.Subscript) -> Value:
        whole = self._visit(node.value)
        if type(whole.type) is tuple and isinstance(node.slice, ast.Constant):
            return elements(whole)[node.slice.value]  # type: ignore[index]
        return self.item(whole, self._visit(node.slice))

    def _on_unaryop(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            return constant(-node.operand.value)  # type: ignore[operator]
        value = self._visit(node.operand)
        if isinstance(node.op, ast.Not):
            return Value(BOOL, (self.emit(f"xor i1 {self.truth(value)}, true"),))
        if not isinstance(node.op, ast.USub):
            raise NotImplementedError(ast.unparse(node))
        if value.type == FLOAT:  # also of 0
            return Value(FLOAT, (self.emit(f"fneg double {value.parts[0]}"),))
        return self.operation("Sub", constant(0), value)

    def _on_binop(self, node: ast.BinOp) -> Value:
        return self.operation(type(node.op).__name__, self._visit(node.left), self._visit(node.right))

    def _on_compare(self, node: ast.Compare) -> Value:
        (operation,), (comparator,) = node.ops, node.comparators
        left, right, holds = self._visit(node.left), self._visit(comparator), "false"
        if not isinstance(operation, ast.In):
            return Value(BOOL, (self.compared(type(operation).__name__, left, right),))
        for each in elements(right):
            holds = self.emit(f"or i1 {holds}, {self.compared('Eq', left, each)}")
        return Value(BOOL, (holds,))

    def _on_boolop(self, node: ast.BoolOp) -> Value:
        value: Value = self._visit(node.values[0])
        for other in node.values[1:]:
            known, rest = lambda value=value: value, lambda other=other: self._visit(other)
            value = self.choice(value, rest, known) if isinstance(node.op, ast.And) else self.choice(value, known, rest)
        return value

    def _on_ifexp(self, node: ast.IfExp) -> Value:
        test = self._visit(node.test)
        return self.choice(test, lambda: self._visit(node.body), lambda: self._visit(node.orelse))

    def _on_call(self, node: ast.Call) -> Value:
        function, arguments = self._object(node.func), [self._visit(each) for each in node.args]
        if node.keywords:
            raise NotImplementedError(ast.unparse(node))
        if inspect.isfunction(function):
            name, result = self._module.function(function, tuple(each.type for each in arguments))
            return self.called(name, result, arguments)
        if function in (min, max):
            return self.extreme("Lt" if function is min else "Gt", arguments)
        value = arguments[0]
        if function is len:
            return Value(INT, value.parts[1:])
        if function in (int, np.int64) and value.type == FLOAT:
            return Value(INT, (self.emit(f"fptosi double {value.parts[0]} to i64"),))
        if function in (int, np.int64, float):
            return self.converted(value, FLOAT if function is float else INT)
        if function is bool:
            return Value(BOOL, (self.truth(value),))
        if function in (math.exp, math.log):
            return self.of_c(function.__name__, value)
        raise NotImplementedError(ast.unparse(node))
