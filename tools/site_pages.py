"""MkDocs' hook: what pages of the site have beyond their Markdown.

Formulas between dollars become MathML, which browsers draw without a script. The notebook is a page
with its outputs as they were saved. The index of the API lists every name of its pages, under the
anchors that names had when the API was one page.
"""

import html
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "examples" / "ten_minutes.ipynb"
_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)


def typeset(page: str) -> str:
    """The HTML of a page with its formulas as MathML."""
    from latex2mathml.converter import convert

    def formula(found: re.Match[str]) -> str:
        display = "block" if found["tag"] == "div" else "inline"
        mathml = convert(html.unescape(found["tex"]).strip(), display=display)
        if unknown := re.search(r"\\[a-zA-Z]+", mathml):
            raise ValueError(f"no MathML is known for {unknown[0]} in {found['tex'].strip()}")
        return f'<{found["tag"]} class="formula">{mathml}</{found["tag"]}>'

    return _FORMULA.sub(formula, page)


def from_notebook(document: dict[str, Any]) -> str:
    """A notebook as Markdown, with the outputs that it was saved with."""
    parts = []
    for number, cell in enumerate(document["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "text/html" in data:
                # Pictures of several results name their parts alike.
                shown = "".join(data["text/html"]).replace("picture-", f"picture-{number}-")
                parts.append(f'<div class="output">{shown}</div>')
            else:
                parts.append(f"```text\n{''.join(data['text/plain']).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def api_index(markdown: str, pages: dict[str, str]) -> str:
    """The index with the names that ``pages``, Markdown by address, document."""
    parts = [markdown.rstrip()]
    for address, text in pages.items():
        title = text.partition("\n")[0].removeprefix("# ")
        parts.append(f"## {title}")
        parts.append(
            ", ".join(
                f'<a id="{name}"></a>[`{name.rpartition(".")[2]}`]({address}#{name})'
                for name in documented(text)
            )
        )
    return "\n\n".join(parts) + "\n"


def documented(text: str) -> list[str]:
    """The names that a page documents."""
    return re.findall(r"^::: (\S+)$", text, re.MULTILINE)


@cache
def _api_pages() -> dict[str, str]:
    folder = ROOT / "docs" / "api"
    names = re.findall(r"\(api/(\w+)\.md\)", (ROOT / "docs" / "api.md").read_text("utf-8"))
    return {f"api/{name}.md": (folder / f"{name}.md").read_text("utf-8") for name in names}


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    notebook = from_notebook(json.loads(NOTEBOOK.read_text("utf-8")))
    files.append(File.generated(config, "ten_minutes.md", content=notebook))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    return api_index(markdown, _api_pages()) if page.file.src_uri == "api.md" else markdown


def on_page_content(html: str, **_: Any) -> str:
    return typeset(html)
