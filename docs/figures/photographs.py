"""Draw what `contextcaps tag` shows at a terminal for the six photographs of the demo.

    python docs/figures/photographs.py

The photographs themselves come with other packages and are not part of this repository.
"""

import dataclasses
import io
import re
from pathlib import Path

from rich.console import Console

import contextcaps
from contextcaps.experiments.photographs import bundled_photographs
from contextcaps.tagging.terminal import Terminal

PICTURE = Path(__file__).with_name("photographs.svg")


def main() -> None:
    console = Console(record=True, width=64, file=io.StringIO(), force_terminal=True, highlight=False)
    paths = bundled_photographs()
    console.print("[bold]$ contextcaps tag[/] " + " ".join(path.name for path in paths[:3]) + " …", markup=True)
    terminal = Terminal(console)
    for tagging in contextcaps.load(device="cpu").tag_stream(paths):
        terminal.write(dataclasses.replace(tagging, image=Path(str(tagging.image)).name))
    svg = console.export_svg(title="contextcaps tag", unique_id="photographs")
    # No request to a font server: the fonts that the machine has.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code", "ui-monospace")
    PICTURE.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
