"""The text of one function for LLVM: blocks, variables in memory, and operations on values.

LLVM moves the variables into registers, and computes once what it sees repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zeus_core.pipeline.planner.loops._llvm_values import (
    BOOL,
    FLOAT,
    INT,
    LOADED,
    Array,
    Type,
    Value,
    common_type,
    elements,
    joined,
    parts,
)

_ALIAS = {element: f", !tbaa !{number}" for number, element in enumerate(LOADED)}
DECLARATIONS = "\n".join(
    [f'!{n} = !{{!{n + 4}, !{n + 4}, i64 0}}\n!{n + 4} = !{{!"{element}", !8}}' for n, element in enumerate(LOADED)]
    + ['!8 = !{!"elements"}', "!9 = !{}"]
    + ["declare double @exp(double)", "declare double @log(double)", "declare double @pow(double, double)"]
)
"""Declarations for all functions: that arrays of different elements share no memory, so that their stores need not be
waited for; that named tuples do not change (`!9`); and functions of C."""

_INT_OPERATIONS = {"Add": "add", "Sub": "sub", "Mult": "mul", "BitAnd": "and"}
_INT_OPERATIONS |= {"LShift": "shl", "RShift": "ashr"}
_FLOAT_OPERATIONS = {"Add": "fadd", "Sub": "fsub", "Mult": "fmul", "Div": "fdiv"}
_INT_COMPARISONS = {"Eq": "eq", "NotEq": "ne", "Lt": "slt", "LtE": "sle", "Gt": "sgt", "GtE": "sge"}
_FLOAT_COMPARISONS = {"Eq": "oeq", "NotEq": "une", "Lt": "olt", "LtE": "ole", "Gt": "ogt", "GtE": "oge"}


def structure(kind: Type) -> str:
    """Return the type of LLVM that a function returns for a type."""
    return f"{{{', '.join(parts(kind))}}}"


class FunctionText:
    """The text of a function, which grows block by block."""

    def __init__(self) -> None:
        self._allocations: list[str] = []
        self._blocks: dict[str, list[str]] = {"body": []}
        self._reached = {"body"}
        self._label = "body"
        self._names = 0

    def text(self, head: str) -> str:
        """Return the function, which begins with a head."""
        lines = [f"{head} {{", "begin:", *self._allocations, "br label %body"]
        for label, block in self._blocks.items():
            lines += [f"{label}:", *block]
        return "\n".join([*lines, "}"])

    # Blocks

    def add(self, line: str) -> None:
        """Add an operation without a value to the block under way, unless it has its end."""
        if not self.is_over:
            self._blocks[self._label].append(line)

    def emit(self, operation: str) -> str:
        """Add an operation; return the name of its value."""
        self._names += 1
        self.add(f"%v{self._names} = {operation}")
        return f"%v{self._names}"

    def new_blocks(self, count: int) -> list[str]:
        """Return the labels of new blocks."""
        labels = [f"b{len(self._blocks) + number}" for number in range(count)]
        self._blocks.update((label, []) for label in labels)
        return labels

    def go_on_at(self, label: str) -> None:
        """Add to a block from now on."""
        self._label = label
        if label not in self._reached:
            self.add("unreachable")

    def jump(self, label: str) -> None:
        """End the block by going to another."""
        self._reached |= set() if self.is_over else {label}
        self.add(f"br label %{label}")

    def branch(self, condition: str, yes: str, no: str) -> None:
        """End the block by going to one of two."""
        self._reached |= set() if self.is_over else {yes, no}
        self.add(f"br i1 {condition}, label %{yes}, label %{no}")

    @property
    def is_over(self) -> bool:
        """Whether the block under way has its end."""
        block = self._blocks[self._label]
        return bool(block) and block[-1].startswith(("br ", "ret ", "unreachable"))

    def choice(self, condition: Value, if_true: Callable[[], Value], if_false: Callable[[], Value]) -> Value:
        """Return one of two values, of which only that one is computed."""
        yes, no, after = self.new_blocks(3)
        self.branch(self.truth(condition), yes, no)
        found = []
        for label, make in ((yes, if_true), (no, if_false)):
            self.go_on_at(label)
            found.append((make(), self._label))
        kind, converted = common_type([value.type for value, _ in found]), []
        for value, self._label in found:
            converted.append((self.converted(value, kind), self._label))
            self.jump(after)
        self.go_on_at(after)
        ways = [
            ", ".join(f"[{value.parts[at]}, %{label}]" for value, label in converted) for at in range(len(parts(kind)))
        ]
        return Value(kind, tuple(self.emit(f"phi {part} {way}") for part, way in zip(parts(kind), ways, strict=True)))

    # Memory

    def allocated(self, kind: Type, count: int = 1) -> Value:
        """Return a type with addresses of memory for its parts in place of the parts."""
        addresses = tuple(f"%s{len(self._allocations) + number}" for number in range(len(parts(kind))))
        for address, part in zip(addresses, parts(kind), strict=True):
            self._allocations.append(f"{address} = alloca [{count} x {part}]")
        return Value(kind, addresses)

    def write(self, value: Value, memory: Value) -> None:
        """Write a value into memory of its type."""
        for part, address, kind in zip(value.parts, memory.parts, parts(memory.type), strict=True):
            self.add(f"store {kind} {part}, ptr {address}")

    def read(self, memory: Value) -> Value:
        """Return the value in memory."""
        kinds = zip(memory.parts, parts(memory.type), strict=True)
        return Value(memory.type, tuple(self.emit(f"load {kind}, ptr {address}") for address, kind in kinds))

    def words(self, address: str, kind: Type, at: int) -> Value:
        """Return the value whose parts lie, 8 bytes each, from the one of that number on, and do not change."""
        found = []
        for place, part in enumerate(parts(kind), start=at):
            word = self.emit(f"getelementptr i64, ptr {address}, i64 {place}")
            value = self.emit(f"load {INT if part == BOOL else part}, ptr {word}, !invariant.load !9")
            found.append(self.emit(f"icmp ne i64 {value}, 0") if part == BOOL else value)
        return Value(kind, tuple(found))

    def write_words(self, value: Value, address: str) -> None:
        """Write the parts of a value, 8 bytes each."""
        for at, (part, kind) in enumerate(zip(value.parts, parts(value.type), strict=True)):
            word = self.emit(f"getelementptr i64, ptr {address}, i64 {at}")
            wide = self.converted(Value(BOOL, (part,)), INT) if kind == BOOL else Value(kind, (part,))
            self.add(f"store {wide.type} {wide.parts[0]}, ptr {word}")

    def item(self, whole: Value, index: Value) -> Value:
        """Return an element of an array, or of a tuple whose elements have a common type."""
        if not isinstance(whole.type, Array):
            kind = common_type(whole.type)
            (memory,) = self.allocated(kind, len(whole.type)).parts
            for at, each in enumerate(elements(whole)):
                place = self.emit(f"getelementptr {kind}, ptr {memory}, i64 {at}")
                self.write(self.converted(each, kind), Value(kind, (place,)))
            return self.read(Value(kind, (self.emit(f"getelementptr {kind}, ptr {memory}, i64 {index.parts[0]}"),)))
        element, address = self._address(whole, index)
        value = self.emit(f"load {element}, ptr {address}{_ALIAS[element]}")
        if element in ("i8", "i32"):
            value = self.emit(f"icmp ne i8 {value}, 0" if element == "i8" else f"zext i32 {value} to i64")
        return Value(LOADED[element], (value,))

    def set_item(self, array: Value, index: Value, value: Value) -> None:
        """Change an element of an array."""
        element, address = self._address(array, index)
        number = self.number(value, LOADED[element])
        if element in ("i8", "i32"):
            number = self.emit(f"{'zext i1' if element == 'i8' else 'trunc i64'} {number} to {element}")
        self.add(f"store {element} {number}, ptr {address}{_ALIAS[element]}")

    def _address(self, array: Value, index: Value) -> tuple[str, str]:
        element, place = array.type.element, self.number(index, INT)
        return element, self.emit(f"getelementptr {element}, ptr {array.parts[0]}, i64 {place}")

    # Operations

    def converted(self, value: Value, kind: Type) -> Value:
        """Return a value as one of a wider type."""
        if value.type == kind:
            return value
        if kind == INT and value.type == BOOL:
            return Value(INT, (self.emit(f"zext i1 {value.parts[0]} to i64"),))
        if kind == FLOAT and value.type in (INT, BOOL):
            return Value(FLOAT, (self.emit(f"sitofp i64 {self.number(value, INT)} to double"),))
        if type(kind) is tuple and type(value.type) is tuple and len(kind) == len(value.type):
            return joined([self.converted(*pair) for pair in zip(elements(value), kind, strict=True)])
        raise NotImplementedError(f"{value.type} as {kind}")

    def number(self, value: Value, kind: Type) -> str:
        """Return the only part of a value as one of a wider type."""
        return self.converted(value, kind).parts[0]

    def truth(self, value: Value) -> str:
        """Return whether a number is not 0."""
        if value.type == BOOL:
            return value.parts[0]
        return self.compared("NotEq", value, Value(INT, ("0",)))

    def compared(self, name: str, left: Value, right: Value) -> str:
        """Compare two numbers; the name is that of a class of `ast`, as in all operations."""
        kind = common_type([left.type, right.type, INT])
        word = f"fcmp {_FLOAT_COMPARISONS[name]}" if kind == FLOAT else f"icmp {_INT_COMPARISONS[name]}"
        return self.emit(f"{word} {kind} {self.number(left, kind)}, {self.number(right, kind)}")

    def extreme(self, comparison: str, values: Sequence[Value]) -> Value:
        """Return the first of some numbers beyond which no other is: `Lt` for the least, `Gt` for the greatest."""
        kind = common_type([each.type for each in values])
        found, *others = [self.converted(each, kind) for each in values]
        for each in others:
            is_beyond = self.compared(comparison, each, found)
            found = Value(kind, (self.emit(f"select i1 {is_beyond}, {kind} {each.parts[0]}, {kind} {found.parts[0]}"),))
        return found

    def operation(self, name: str, left: Value, right: Value) -> Value:
        """Combine two numbers."""
        kind = common_type([left.type, right.type, FLOAT if name == "Div" else INT])
        a, b = self.number(left, kind), self.number(right, kind)
        simple = (_FLOAT_OPERATIONS if kind == FLOAT else _INT_OPERATIONS).get(name)
        if name == "Pow" and kind == FLOAT:
            return self.of_c("pow", left, right)
        if simple is not None:
            return Value(kind, (self.emit(f"{simple} {kind} {a}, {b}"),))
        if kind == FLOAT or name not in ("FloorDiv", "Mod"):
            raise NotImplementedError(f"{name} of {left.type} and {right.type}")
        rest = self.emit(f"srem i64 {a}, {b}")  # has the sign of a; Python's has that of b
        differs = self.emit(f"icmp slt i64 {self.emit(f'xor i64 {rest}, {b}')}, 0")
        is_below = self.emit(f"and i1 {differs}, {self.emit(f'icmp ne i64 {rest}, 0')}")
        if name == "Mod":
            found = f"select i1 {is_below}, i64 {self.emit(f'add i64 {rest}, {b}')}, i64 {rest}"
        else:
            quotient = self.emit(f"sdiv i64 {a}, {b}")
            found = f"sub i64 {quotient}, {self.emit(f'zext i1 {is_below} to i64')}"
        return Value(INT, (self.emit(found),))

    def of_c(self, name: str, *arguments: Value) -> Value:
        """Call the function of C that Python calls too; LLVM may not put another in its place."""
        listed = ", ".join(f"double {self.number(each, FLOAT)}" for each in arguments)
        return Value(FLOAT, (self.emit(f"call double @{name}({listed}) nobuiltin"),))

    def called(self, name: str, result: Type, arguments: Sequence[Value]) -> Value:
        """Call a function of the module."""
        passed = joined(arguments)
        listed = ", ".join(f"{kind} {part}" for kind, part in zip(parts(passed.type), passed.parts, strict=True))
        found = self.emit(f"call {structure(result)} {name}({listed})")
        each = range(len(parts(result)))
        return Value(result, tuple(self.emit(f"extractvalue {structure(result)} {found}, {at}") for at in each))

    def ret(self, value: Value) -> None:
        """End the function with its result."""
        built = "undef"
        for at, (part, kind) in enumerate(zip(value.parts, parts(value.type), strict=True)):
            built = self.emit(f"insertvalue {structure(value.type)} {built}, {kind} {part}, {at}")
        self.add(f"ret {structure(value.type)} {built}")
