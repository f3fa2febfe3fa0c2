# SPDX-License-Identifier: Apache-2.0
"""Checks the documentation and the site that tools/site builds from it: test_site.py [SITE]

Relative links and anchors of all Markdown files must work. The pages built from headers, docstrings and the man page must be complete. The
navigation must have every document. With mkdocs (tools/setup docs), builds the site in strict mode and follows the relative links and
anchors of its HTML. With SITE, only follows the links of that site. Uses no network."""
import ast
import glob
import html.parser
import importlib.machinery
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import urllib.parse

sys.dont_write_bytecode = True
ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
LIMIT_S = 280
failed = 0


def check(name, wrong):
    """Print one case; `wrong` lists the mistakes."""
    global failed
    wrong = list(wrong)
    failed += bool(wrong)
    print("not ok %s: %s" % (name, "; ".join(map(str, wrong))) if wrong else "ok %s" % name, flush=True)


def text_of(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def is_external(link):
    return bool(re.match(r"[a-z][a-z0-9+.-]*:|//", link))


def wrong_commands(tool):
    """Prompts and output in what a copy button copies."""
    page = "Text\n\n```console\n$ a --b\n$ c\nout\n\n$ d\n```\n\n```sh\ne\n```\n"
    wanted = "Text\n\n``` sh\na --b\nc\n```\n\n``` { .text .no-copy }\nout\n\n```\n\n``` sh\nd\n```\n\n```sh\ne\n```\n"
    if tool.commands_apart(page) != wanted:
        yield tool.commands_apart(page)
    for name in documents():
        if re.search(r"^\$ ", tool.commands_apart(text_of(os.path.join(ROOT, name))), re.M):
            yield "%s: a prompt" % name


# ---- Markdown files of the repository


def documents():
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard", "*.md"], capture_output=True, text=True)
    names = listed.stdout.splitlines() if listed.returncode == 0 else []  # a tarball has no git
    names = names or [os.path.relpath(path, ROOT) for folder in ("*.md", "docs/**/*.md", "examples/**/*.md", "conformance/*.md")
                      for path in glob.glob(os.path.join(ROOT, folder), recursive=True)]
    return sorted(name for name in names if os.path.exists(os.path.join(ROOT, name)))


def without_code(text):
    return re.sub(r"`[^`\n]*`", "``", re.sub(r"^```.*?^```[^\n]*$", "", text, flags=re.M | re.S))


def slugs(text):
    """Anchors that GitHub gives to the headings of a document."""
    found = set()
    for heading in re.findall(r"^#+ +(.*?) *#*$", re.sub(r"^```.*?^```[^\n]*$", "", text, flags=re.M | re.S), re.M):
        slug = base = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-")
        count = 0
        while slug in found:
            count += 1
            slug = "%s-%d" % (base, count)
        found.add(slug)
    return found


def broken_in(path, text, root=ROOT):
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if is_external(link):
            continue
        name, _, anchor = link.partition("#")
        target = os.path.normpath(os.path.join(root, os.path.dirname(path), name)) if name else os.path.join(root, path)
        if name and not os.path.exists(target):
            yield "%s: no file %s" % (path, link)
        elif anchor and target.endswith(".md") and anchor not in slugs(text_of(target) if name else text):
            yield "%s: no heading %s" % (path, link)


def broken_links():
    for path in documents():
        yield from broken_in(path, text_of(os.path.join(ROOT, path)))


def unnoticed():
    """Mistakes that the check of Markdown does not report, although it should."""
    for text, good in (("[a](README.md)", True), ("[a](no-such.md)", False), ("# A b\n[a](#a-b)", True), ("# A b\n[a](#a-c)", False),
                       ("`[a](no-such.md)`", True), ("[a](README.md#no-such)", False), ("[a](https://example.org/)", True)):
        if good == bool(list(broken_in("x.md", text))):
            yield text


# ---- pages that tools/site builds


def site_tool():
    loader = importlib.machinery.SourceFileLoader("site_tool", ROOT + "/tools/site")
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("site_tool", loader))
    loader.exec_module(module)
    return module


def missing_from_c(tool, name):
    """Declared functions that have no anchor on the page of the header."""
    page = tool.header(name)
    code = re.sub(r"/\*.*?\*/", "", text_of(ROOT + "/include/" + name), flags=re.S)
    functions = re.findall(r"^TSR_API[^;(]*?\b(tsr_\w+)\(", code, re.M)
    assert len(functions) > 50
    for function in functions:
        if "#%s }" % function not in page and '<a id="%s">' % function not in page:
            yield function


def missing_from_python(tool):
    page = tool.python()
    tree = ast.parse(text_of(ROOT + "/python/tessera/__init__.py"))
    public = next(ast.literal_eval(n.value) for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "__all__")
    if "\n    session = tessera.InferenceSession(" not in page:
        public = public + ["the example of the package, as code"]
    return [name for name in public if "{ #%s }" % name not in page and "{ #%s." % name not in page]


def missing_from_command(tool):
    page, manual = tool.command(), text_of(ROOT + "/docs/tessera.1").replace(r"\-", "-")
    for name in re.findall(r"^\.SS tessera (\w+)", manual, re.M):
        if "{ #tessera-%s }" % name not in page:
            yield name
    for option in set(re.findall(r"^\.B (--[\w-]+)", manual, re.M)):
        if "- `" + option not in page:
            yield option


def missing_from_navigation(tool):
    named = set(re.findall(r": ([\w/]+\.md)$", text_of(ROOT + "/docs/mkdocs.yml"), re.M))
    for path in documents():
        if (path.startswith("docs/") or "/" not in path) and tool.page_of(path) not in named:
            yield path + " (add it to docs/mkdocs.yml)"


# ---- the HTML of a site


class Page(html.parser.HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(text_of(path))

    def handle_starttag(self, tag, attributes):
        for key, value in attributes:
            if key == "id" or key == "name" and tag == "a":
                self.anchors.add(value)
            elif key in ("href", "src") and value:
                self.links.append((tag, value))


def broken_in_site(site):
    files = glob.glob(site + "/**/*.html", recursive=True)
    pages = {os.path.normpath(path): Page(path) for path in files if not path.endswith("404.html") and "/files/" not in path}
    if not pages:
        yield "no pages in " + site
    for path, page in pages.items():
        for tag, link in page.links:
            shown = "%s: %s" % (os.path.relpath(path, site), link)
            if is_external(link):
                if tag in ("script", "link", "img"):
                    yield shown + " is loaded from the network"
                continue
            name, _, anchor = urllib.parse.unquote(link).partition("#")
            target = os.path.normpath(os.path.join(os.path.dirname(path), name.partition("?")[0])) if name else path
            target = os.path.join(target, "index.html") if os.path.isdir(target) else target
            if not os.path.exists(target):
                yield shown + " leads nowhere"
            elif anchor and target in pages and anchor not in pages[target].anchors and anchor not in ("__search", "__toc"):
                yield shown + " has no anchor"


def unnoticed_in_site():
    with tempfile.TemporaryDirectory(prefix="tessera-site-") as folder:
        for body, good in (('<a id="b" href="#b">', True), ('<a href="#c">', False), ('<a href="no.html">', False),
                           ('<img src="https://example.org/a.png">', False), ('<a href="https://example.org/">', True)):
            with open(folder + "/index.html", "w") as f:
                f.write(body)
            if good == bool(list(broken_in_site(folder))):
                yield body


def wrongly_tried():
    """Links to the page in the browser although it was not built, and links that are missing although it was."""
    with tempfile.TemporaryDirectory(prefix="tessera-site-") as folder:
        for words in ((), browser_page(folder)):
            subprocess.run([sys.executable, "-B", ROOT + "/tools/site", "-", folder + "/base", *words], check=True)
            for name in ("mkdocs.yml", "pages/browser.md"):
                if ("try/index.html" in text_of(folder + "/base/" + name)) != bool(words):
                    yield "%s, tools/site %s" % (name, " ".join(words))


def browser_page(folder):
    """Makes a page in the browser that does nothing. Returns the option of tools/site for it."""
    os.mkdir(folder + "/page")
    for name, text in (("index.html", '<script src="app.js"></script>'), ("app.js", "")):
        with open("%s/page/%s" % (folder, name), "w") as f:
            f.write(text)
    return "--try", folder + "/page"


def builds(tool):
    with tempfile.TemporaryDirectory(prefix="tessera-site-") as folder:
        with open(folder + "/log", "w+") as log:
            code = subprocess.run([sys.executable, "-B", ROOT + "/tools/site", folder + "/site", *browser_page(folder)], stdout=log,
                                  stderr=subprocess.STDOUT, timeout=LIMIT_S).returncode
            log.seek(0)
            said = log.read()
        check("mkdocs builds the site in strict mode", [said[-2000:]] if code else [])
        if code == 0:
            check("links and anchors of the site", broken_in_site(folder + "/site"))
            start = Page(folder + "/site/index.html")
            check("the site offers the page in the browser", [] if ("a", "try/index.html") in start.links else ["no link"])


def main():
    if len(sys.argv) > 1:
        check("links and anchors of " + sys.argv[1], broken_in_site(sys.argv[1]))
        sys.exit(1 if failed else 0)
    tool = site_tool()
    check("broken Markdown links are noticed", unnoticed())
    check("links and anchors of the documents", broken_links())
    for name in tool.HEADERS:
        check("page of " + name, missing_from_c(tool, name))
    check("page of the Python package", missing_from_python(tool))
    check("page of the command", missing_from_command(tool))
    check("navigation", missing_from_navigation(tool))
    check("copy buttons copy commands", wrong_commands(tool))
    picture = re.search(r"!\[.+\]\(\S+\.svg\)", text_of(os.path.join(ROOT, "docs", "index.md")))
    check("the first page has a picture", [] if picture else ["none"])
    check("broken links of a site are noticed", unnoticed_in_site())
    check("the page in the browser is offered where it was built", wrongly_tried())
    if os.path.exists(tool.MKDOCS):
        builds(tool)
    else:
        print("ok mkdocs builds the site # SKIP no mkdocs; tools/setup docs installs it")
    sys.exit(1 if failed else 0)


main()
