"""A hook of MkDocs: the scripts in examples/ are pages of the site, which mkdocs-jupyter runs and shows as notebooks."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]


@event_priority(100)  # before mkdocs-jupyter looks for scripts
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the scripts."""
    for script in sorted(ROOT.glob("examples/*.py")):
        files.append(File(f"examples/{script.name}", str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to scripts are relative to docs/ in the repository, and to the root on the site."""
    return markdown.replace("](../examples/", "](examples/")
