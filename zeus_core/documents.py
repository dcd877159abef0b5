"""Documents in JSON files. One says what it is, is replaced as a whole, and is set aside when it cannot be read."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from zeus_core.codec import decode, encode
from zeus_core.errors import UsageError
from zeus_core.files import is_special, write_atomically
from zeus_core.validate import shown

T = TypeVar("T")

_logger = logging.getLogger(__name__)


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text, or of the content of a JSON file.

    Raises:
        UsageError: It is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text if isinstance(text, str) else text.decode())
    except ValueError as error:
        raise UsageError(f"it is not JSON: {error}") from error
    except RecursionError:
        raise UsageError("it is nested too deeply") from None


@dataclass(frozen=True)
class Document(Generic[T]):
    """A JSON object with the fields of a value, which names itself and its version beside them.

    Attributes:
        name: The name in the file, such as "zeus-core pipeline plan".
        version: Raised whenever a reader of the last version could misread the fields. Other versions are refused.
        kind: The class of the value, with fields by name: a dataclass, or `dict[str, Any]`.
        contents: How errors call the value, such as "the plan".
    """

    name: str
    version: int
    kind: type[T]
    contents: str = "it"

    def to_json(self, value: T) -> dict[str, Any]:
        """Return the document that holds a value, in JSON types."""
        return {"format": self.name, "version": self.version, **encode(value)}

    def from_json(self, document: Any) -> T:
        """Return the value of a document.

        Raises:
            UsageError: It is another kind of document, of another version, or damaged; the message names the field.
        """
        if not isinstance(document, Mapping) or document.get("format") != self.name:
            raise UsageError(f'it does not say "format": "{self.name}"')
        version = document.get("version")
        if version != self.version or isinstance(version, bool):
            raise UsageError(f"its version is {shown(version)}; this program reads version {self.version}")
        fields = {name: value for name, value in document.items() if name not in {"format", "version"}}
        return decode(self.kind, fields, self.contents)

    def read(self, path: Path) -> T:
        """Return the value of the document in a file.

        Raises:
            OSError: The file cannot be read; FileNotFoundError or NotADirectoryError if there is none.
            UsageError: It holds something else, or is a folder or a device.
        """
        if is_special(path):  # a pipe would be waited for
            raise UsageError("it is a folder or a device, not a file")
        try:
            data = path.read_bytes()
        except ValueError as error:
            raise UsageError(f"no file can have this name: {error}") from error
        return self.from_json(parse_json(data))

    def write(self, path: Path, value: T, indent: int | None = 2, is_lasting: bool = True) -> None:
        """Replace a file by a document; its folder is made if need be. See `write_atomically`.

        Raises:
            OSError: It cannot be written.
            ValueError: No file can have that name, or a number is not finite.
        """
        text = json.dumps(self.to_json(value), indent=indent, allow_nan=False) + "\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text, is_lasting)

    def load(self, path: Path) -> T | None:
        """Return the value in a file that is kept from run to run; None if there is none. Never raises.

        A file that cannot be used is set aside under another name, with one warning.
        """
        try:
            return self.read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, UsageError) as error:
            set_aside(path, self.contents, error)
            return None

    def save(self, path: Path, value: T, warns: bool = True) -> bool:
        """Replace a file that is kept from run to run; return whether that went well. Never raises."""
        try:
            self.write(path, value)
        except (OSError, ValueError) as error:
            if warns:
                text = "%s %s cannot be written; training continues without it: %s"
                _logger.warning(text, self.contents, path, error)
            return False
        return True


def set_aside(path: Path, contents: str, reason: Exception) -> None:
    """Give a file that cannot be used another name, with one warning. Never raises."""
    kept = "where it is"
    number = 1
    try:
        if not is_special(path):
            while (aside := path.with_name(f"{path.name}.aside-{number}")).exists():
                number += 1
            path.replace(aside)
            kept = f"as {aside.name}"
    except (OSError, ValueError) as error:
        kept = f"where it is ({error})"
    _logger.warning("%s %s is not used: %s. The file is kept %s", contents, path, reason, kept)
