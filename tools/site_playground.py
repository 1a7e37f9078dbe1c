"""MkDocs' hook: the playground as a file of the site, made by the package itself."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from noisescale.paper.report.playground import playground_page


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "playground-page.html", content=playground_page()))
    return files
