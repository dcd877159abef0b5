"""Documents in JSON files. One says what it is, is replaced as a whole, and is set aside when it cannot be read."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

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
class JsonFormat:
    """A kind of JSON document, which names itself and its version beside its fields.

    Attributes:
        name: The kind, such as "zeus-core pipeline plan".
        version: Raised whenever a reader of the last version could misread the fields.
    """

    name: str
    version: int

    def document(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the document that holds these fields."""
        return {"format": self.name, "version": self.version, **fields}

    def fields(self, document: Any) -> dict[str, Any]:
        """Return the fields of a document.

        Raises:
            UsageError: It is another kind of document, or of another version.
        """
        if not isinstance(document, Mapping) or document.get("format") != self.name:
            raise UsageError(f'it does not say "format": "{self.name}"')
        version = document.get("version")
        if version != self.version or isinstance(version, bool):
            raise UsageError(f"its version is {shown(version)}; this program reads version {self.version}")
        return {name: value for name, value in document.items() if name not in {"format", "version"}}

    def read(self, path: Path) -> dict[str, Any]:
        """Return the fields of the document in a file.

        Raises:
            OSError: The file cannot be read; FileNotFoundError or NotADirectoryError if there is none.
            UsageError: It holds something else.
        """
        try:
            data = path.read_bytes()
        except ValueError as error:
            raise UsageError(f"no file can have this name: {error}") from error
        return self.fields(parse_json(data))

    def write(self, path: Path, fields: Mapping[str, Any], indent: int | None = 2, is_lasting: bool = True) -> None:
        """Replace a file by a document; its folder is made if need be. See `write_atomically`.

        Raises:
            OSError: It cannot be written.
            ValueError: No file can have that name, or a number is not finite.
        """
        text = json.dumps(self.document(fields), indent=indent, allow_nan=False) + "\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text, is_lasting)


@dataclass
class JsonStore:
    """A document that is kept in a file from run to run. Neither method raises.

    Attributes:
        path: The file.
        format: The format of its content.
        contents: How warnings call it, such as "profile".
    """

    path: Path
    format: JsonFormat
    contents: str
    _has_failed: bool = field(default=False, init=False)

    def load(self, decode: Callable[[dict[str, Any]], T]) -> T | None:
        """Return what `decode` makes of the fields in the file; None if there is no file.

        A file that cannot be read, or that `decode` refuses with a `UsageError`, is set aside under another name, with
        one warning; None is returned.
        """
        try:
            if is_special(self.path):  # a pipe would be waited for
                raise UsageError("it is a folder or a device, not a file")
            return decode(self.format.read(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, UsageError) as error:
            aside = _set_aside(self.path)
            _logger.warning("the %s %s is not used: %s. The file is kept %s", self.contents, self.path, error, aside)
            return None

    def save(self, fields: Mapping[str, Any]) -> None:
        """Replace the file; log one warning if it cannot be written, however often that is tried."""
        try:
            self.format.write(self.path, fields)
        except (OSError, ValueError) as error:
            if not self._has_failed:
                self._has_failed = True
                _logger.warning(
                    "the %s %s cannot be written; training continues without it: %s", self.contents, self.path, error
                )


def _set_aside(path: Path) -> str:
    if is_special(path):
        return "where it is"
    number = 1
    try:
        while (aside := path.with_name(f"{path.name}.aside-{number}")).exists():
            number += 1
        path.replace(aside)
    except (OSError, ValueError) as error:
        return f"where it is ({error})"
    return f"as {aside.name}"
