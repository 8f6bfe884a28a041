"""The description of the API as a page that needs nothing from elsewhere, not even a script."""

from html import escape
from typing import Any


def docs_page(openapi: dict[str, Any]) -> str:
    info = openapi["info"]
    sections = [
        _operation(method.upper(), path, operation)
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
    ]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(info["title"])}: the API</title>
<link rel="icon" href="/page/icon.svg">
<link rel="stylesheet" href="/page/style.css">
</head>
<body>
<header><h1>{escape(info["title"])} <span class="quiet">{escape(info["version"])}</span></h1>
<p>{escape(info["description"])}</p>
<p><a href="/">The page</a> · <a href="/openapi.json">This description as OpenAPI</a></p></header>
<main class="docs">
{"".join(sections)}
</main>
</body>
</html>
"""


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    asked = "".join(
        f"<dt><code>{escape(one['name'])}</code></dt>"
        f"<dd>{escape(one.get('description', 'in the path'))}</dd>"
        for one in operation.get("parameters", [])
    )
    if "requestBody" in operation:
        asked += "<dt>body</dt><dd>a form with one or more files</dd>"
    if "security" in operation:
        asked += "<dt>header</dt><dd><code>Authorization: Bearer TOKEN</code></dd>"
    answered = "".join(
        f"<dt>{escape(status)}</dt><dd>{escape(_described(response))}</dd>"
        for status, response in sorted(operation["responses"].items())
    )
    return (
        f'<section class="card"><h2><code>{method} {escape(path)}</code></h2>'
        f"<p>{escape(operation['summary'])}</p>"
        + (f"<h3>Asks for</h3><dl>{asked}</dl>" if asked else "")
        + f"<h3>Answers</h3><dl>{answered}</dl>"
        + (f"<pre><code>{escape(_example(method, path, operation))}</code></pre></section>\n")
    )


def _described(response: dict[str, Any]) -> str:
    schema = response.get("content", {}).get("application/json", {}).get("schema", {})
    name = schema.get("$ref", "").rpartition("/")[2]
    return f"{response['description']}: {name}" if name else response["description"]


def _example(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = ["curl"]
    if method == "DELETE" or (method == "POST" and "requestBody" not in operation):
        parts.append(f"-X {method}")
    if "security" in operation:
        parts.append('-H "Authorization: Bearer $DAFUSE_TOKEN"')
    if "requestBody" in operation:
        parts.append("-F files=@cat.jpg")
    return " ".join([*parts, "http://127.0.0.1:8000" + path.replace("{name}", "cat")])
