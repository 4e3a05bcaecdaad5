"""Write hashes.txt: the packages that contextcaps needs, as tested, each with its file's checksum.

    make hashes

pip resolves them with constraints.txt, and says which files it would install; the checksums are those that the index
gives for them. It is for the platform and the Python that it is run with.
"""

import json
import subprocess
import sys
from pathlib import Path

HEAD = """\
# What tagging needs, as tested, with the checksum of each file: for Linux on x86-64 with Python 3.11.
# `make hashes` writes this file.
#   pip install --require-hashes --no-deps --only-binary :all: --requirement hashes.txt
#   pip install --no-deps .
"""


def main() -> None:
    root = Path(__file__).parents[1]
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    words += ["--constraint", str(root / "constraints.txt"), str(root)]
    found = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)["install"]
    lines = []
    for package in found:
        name, version = package["metadata"]["name"], package["metadata"]["version"]
        if name.lower() != "contextcaps":
            digest = package["download_info"]["archive_info"]["hashes"]["sha256"]
            lines.append(f"{name}=={version} --hash=sha256:{digest}")
    (root / "hashes.txt").write_text(HEAD + "\n".join(sorted(lines, key=str.lower)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
