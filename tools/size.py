"""How large the repository is, by folder: printed at the end of ``make lint``, never failing.

    python tools/size.py

Code lines hold code: no blank lines, comments or docstrings. Statements are the nodes of the syntax
tree. Data text is what lies beside the code of ``src``: TOML, HTML, JSON and their kin.
"""

import ast
import io
import tokenize
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
DATA = {".toml", ".html", ".json", ".css", ".js", ".csv"}
_SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def sizes(text: str) -> tuple[int, int]:
    """Code lines and statements of a module."""
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    doc_lines: set[int] = set()
    n_docs = 0
    for node in nodes:
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            doc_lines.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
            n_docs += 1
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SILENT:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - doc_lines), sum(isinstance(node, ast.stmt) for node in nodes) - n_docs


def python_row(name: str, paths: Iterable[Path]) -> tuple[int, int, int]:
    """Prints one line for these modules and returns its numbers."""
    found = [sizes(path.read_text(encoding="utf-8")) for path in paths]
    row = len(found), sum(lines for lines, _ in found), sum(count for _, count in found)
    print(f"{name:<26}{row[0]:>7}{row[1]:>12,}{row[2]:>12,}")
    return row


def main() -> None:
    source = ROOT / "src" / "noisescale"
    print(f"{'':<26}{'files':>7}{'code lines':>12}{'statements':>12}")
    rooms = sorted(path for path in source.iterdir() if path.is_dir() and any(path.rglob("*.py")))
    python_row("src", source.rglob("*.py"))
    for room in rooms:
        python_row(f"  {room.name}", room.rglob("*.py"))
    python_row("  modules of their own", source.glob("*.py"))
    for folder in ("tests", "tools", "benchmarks", "docs"):
        python_row(folder, (ROOT / folder).rglob("*.py"))
    texts = [path for path in source.rglob("*") if path.suffix in DATA]
    n_bytes = sum(path.stat().st_size for path in texts)
    print(f"data text in src: {len(texts)} files, {n_bytes:,} bytes")


if __name__ == "__main__":
    main()
