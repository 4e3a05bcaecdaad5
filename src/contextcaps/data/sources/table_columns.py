"""Find out what each column of a table is: the paths, the labels, the splits, a class, or nothing that is needed."""

from collections import Counter
from collections.abc import Sequence

from contextcaps.data.image_finder import is_image_name
from contextcaps.data.problems import DataError
from contextcaps.data.sources.table_file import TableRows, cell_text
from contextcaps.data.vocabulary import folded

__all__ = ["TRUTH", "UNKNOWN_WORDS", "TableColumns"]

TRUTH = {
    **dict.fromkeys(("0", "0.0", "false", "no"), False),
    **dict.fromkeys(("1", "1.0", "true", "yes"), True),
}
"""What a cell in a class's column says of the class, in lower case."""

_IMAGE_NAMES = (
    *("path", "image", "file", "filename", "file_name", "image_path", "filepath", "img"),
    *("image_name", "img_path", "file_path", "image_file", "fname", "image_id", "imageid"),
)
_LABEL_NAMES = (
    *("labels", "label", "tags", "classes", "tag", "class", "category", "categories"),
    *("class_name", "label_name", "labelname", "keywords", "choice", "choices"),
)
_PRESENT_NAMES = ("confidence", "present", "presence", "is_present", "value")
_SPLIT_NAMES = ("split", "set", "subset", "is_valid")
_IGNORE_NAMES = ("ignore", "ignored", "unknown")
UNKNOWN_WORDS = frozenset({"", "?", "nan", "-1", "-1.0"})
"""What a cell in a class's column says where nobody knows, unless `TableColumns.truth` has it; in lower case."""
_LEAST_TRUTHS = 0.1
"""A column with fewer 0s and 1s than this share of its cells is no class."""
_SHOWN = 5


class TableColumns:
    """Finds columns by their names and contents.

    Args:
        source: the source's name, for messages.
        table: the columns and rows.
        assumptions: gets a sentence for what was assumed.
    """

    def __init__(self, source: str, table: TableRows, assumptions: list[str]) -> None:
        self._source, self._table, self._assumptions = source, table, assumptions
        self.names = table.columns
        self.truth = dict(TRUTH)
        """What a cell in a class's column says of the class, in lower case."""
        self._counted: dict[int, Counter[str]] = {}

    def find(self, option: str, name: str | None, usual: tuple[str, ...]) -> int | None:
        """Return the position of a column by its name, or by the first usual name that is there, whatever its case."""
        if name is not None:
            if name not in self.names:
                raise DataError(f"{self._source}: {option}: no column {name!r}; it has {self._listed()}")
            return self.names.index(name)
        lowered = [column.lower().replace(" ", "_") for column in self.names]
        return next((lowered.index(word) for word in usual if word in lowered), None)

    def find_image(self, name: str | None) -> int:
        """Return the position of the paths: a column of a usual name, or the only one with names of image files."""
        position = self.find("image_column", name, _IMAGE_NAMES)
        if position is not None:
            return position
        first = self._table.rows[:100]
        full = [
            each
            for each in range(len(self.names))
            if first and 2 * sum(is_image_name(cells[each]) for _, cells in first) > len(first)
        ]
        if len(full) == 1:
            if self._table.has_names:
                self._assumptions.append(f"{self._shown(full[0])} is the column of paths, by what it holds")
            return full[0]
        if not self._table.has_names:
            return 0
        raise DataError(
            f"{self._source}: no column named {', '.join(_IMAGE_NAMES[:8])}; the columns are {self._listed()}; name "
            "one with image_column=NAME"
        )

    def find_label(self, name: str | None, image: int, given: tuple[str, ...] | None) -> int | None:
        """Return the position of the labels; None where each class has a column."""
        position = self.find("label_column", name, _LABEL_NAMES)
        if position is not None or self._table.has_names:
            return position
        others = [position for position in range(len(self.names)) if position != image]
        if len(others) == 1:
            return others[0]
        if given is None or len(others) != len(given):
            raise DataError(
                f"{self._source}: {len(self.names)} columns and no row with their names; add a first row with them, "
                "such as path,labels (header=true says that the first row has the names)"
            )
        for position, word in zip(others, given, strict=True):
            self.names[position] = word
        return None

    def refuse_absent_labels(self) -> None:
        """Raise if a column beside that of the labels says that some are absent, as Open Images has it."""
        position = self.find("", None, _PRESENT_NAMES)
        words = [] if position is None else [cell_text(cells[position]).lower() for _, cells in self._table.rows]
        absent = sum(TRUTH.get(word) is False for word in words)
        if absent and all(word in TRUTH for word in words):
            raise DataError(
                f"{self._source}: column {self._shown(position or 0)} is 0 in {absent:,} of {len(words):,} rows: are "
                "these labels absent? Remove such rows, or the column if it means something else"
            )

    def find_split(self, name: str | None) -> int | None:
        """Return the position of the splits; None where there is no such column."""
        return self.find("split_column", name, _SPLIT_NAMES)

    def find_ignored(self, name: str | None, label: int | None) -> int | None:
        """Return the position of the ignored classes; None where there is no such column.

        Where every class has a column, a class may have the usual name.
        """
        return self.find("ignore_column", name, () if label is None else _IGNORE_NAMES)

    def find_classes(
        self, given: tuple[str, ...] | None, others: tuple[int | None, ...], unify: bool
    ) -> list[tuple[int, str]]:
        """Return the position of each column that is a class, and the class.

        Args:
            given: the classes, if a list is given; their columns alone count.
            others: columns that are something else.
            unify: columns whose names differ only in case or white space are one class.
        """
        if given is not None:
            missing = [name for name in given if name not in self.names]
            if missing:
                raise DataError(
                    f"{self._source}: no column for {len(missing)} of {len(given)} classes: {', '.join(missing[:10])}; "
                    f"and no column named {', '.join(_LABEL_NAMES[:4])}"
                )
            positions = [self.names.index(name) for name in given]
            self._read_minus_as_absent(positions)
            return list(zip(positions, given, strict=True))
        self._read_minus_as_absent([position for position in range(len(self.names)) if position not in others])
        found: dict[str, list[int]] = {}
        no_class = []
        for position, name in enumerate(self.names):
            if position in others:
                continue
            strange = self._strange_value(position)
            if strange is not None:
                no_class.append(f"{self._shown(position)} ({strange})")
            elif not name:
                raise DataError(
                    f"{self._source}: {self._shown(position)} has no name; write its class in the first row, or "
                    "remove the column"
                )
            else:
                found.setdefault(folded(name) if unify else name, []).append(position)
        if not found:
            held = f"; no 0 and 1 in {_some(no_class)}" if no_class else ""
            raise DataError(
                f"{self._source}: no labels: expected a column named {', '.join(_LABEL_NAMES[:4])}, or one column per "
                f"class with 0 or 1; the columns are {self._listed()}{held}; name one with label_column=NAME"
            )
        if no_class:
            self._assumptions.append(f"columns without 0 and 1 are no classes, and left out: {_some(no_class)}")
        for positions in found.values():
            if len(positions) > 1:
                names = ", ".join(repr(self.names[position]) for position in positions)
                self._assumptions.append(f"columns {names} are one class; unify=false keeps them apart")
        return sorted((each, self.names[positions[0]]) for positions in found.values() for each in positions)

    def _read_minus_as_absent(self, positions: Sequence[int]) -> None:
        """Take -1 for absent in a table of 1 and -1, as CelebA has it; beside 0 it is no such thing."""
        minus = ("-1", "-1.0")
        columns = [set(self._values(position)) for position in positions]
        columns = [values for values in columns if values <= {*TRUTH, *UNKNOWN_WORDS}]
        values = set().union(*columns)
        if values & set(minus) and not any(TRUTH.get(value) is False for value in values):
            self.truth |= dict.fromkeys(minus, False)
            self._assumptions.append("-1 means that the class is absent, since no cell is 0")

    def _strange_value(self, position: int) -> str | None:
        """Return one of the values for which a column cannot be a class; None if it can be one."""
        if not self._table.rows:
            return None
        values = self._values(position)
        known = {text: values[text] for text in values if text in self.truth or text not in UNKNOWN_WORDS}
        strange = [text for text in known if text not in self.truth]
        truths = sum(count for text, count in known.items() if text in self.truth)
        is_class = truths > _LEAST_TRUTHS * sum(known.values())
        return None if is_class else repr(strange[0]) if strange else "empty"

    def _values(self, position: int) -> Counter[str]:
        """Return the texts in a column, in lower case, and how often each is there."""
        if position not in self._counted:
            # Cells are counted before they are made text: a table of 80 classes has millions of them, but few values.
            raw = Counter(
                cell if isinstance(cell, str | int | float) else str(cell)
                for _, cells in self._table.rows
                if (cell := cells[position]) is not None
            )
            counted = self._counted[position] = Counter[str]()
            for cell, count in raw.items():
                counted[cell_text(cell).lower()] += count
        return self._counted[position]

    def _shown(self, position: int) -> str:
        return self.names[position] or f"column {position + 1}"

    def _listed(self) -> str:
        shown = _some([self._shown(position) for position in range(len(self.names))], 20)
        alone = " (one column: they are separated by commas, semicolons, tabs or |, outside of quotes)"
        return shown + alone * (len(self.names) == 1)


def _some(words: Sequence[str], most: int = _SHOWN) -> str:
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return f"{', '.join(words[:most])}{more}"
