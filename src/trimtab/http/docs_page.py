"""/docs: the OpenAPI description as one plain page, for people, without anything from elsewhere."""

from __future__ import annotations

from html import escape
from typing import Any

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code{font:13px/1.4 ui-monospace,monospace}h2{margin-top:2rem;border-bottom:1px solid #bbb}"
    "section{margin:1.2rem 0}table{border-collapse:collapse}td{padding:.1rem .8rem .1rem 0;vertical-align:top}"
    ".m{font-weight:bold;display:inline-block;min-width:3.5rem}"
    "@media(prefers-color-scheme:dark){body{background:#16181c;color:#ddd}a{color:#8bf}}"
)


def docs_page(openapi: dict[str, Any]) -> str:
    """The page."""
    info = openapi["info"]
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{escape(info['title'])} HTTP API</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info.get('description', ''))}</p>",
        '<p>For programs: <a href="/openapi.json">/openapi.json</a></p>',
    ]
    heading = ""
    for tag, method, path, operation in _operations(openapi):
        if tag != heading:
            heading = tag
            parts.append(f"<h2>{escape(tag)}</h2>")
        parts.append(_section(method, path, operation))
    parts.append("</body></html>")
    return "".join(parts)


def _operations(openapi: dict[str, Any]) -> list[tuple[str, str, str, dict[str, Any]]]:
    """Tag, method, path and operation, in the order of the first use of each tag."""
    found = [
        (operation.get("tags", [""])[0], method.upper(), path, operation)
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
    ]
    tags = list(dict.fromkeys(tag for tag, *_rest in found))
    return sorted(found, key=lambda one: tags.index(one[0]))


def _section(method: str, path: str, operation: dict[str, Any]) -> str:
    rows = [(f"{one['name']} ({one['in']})", one.get("description", "")) for one in operation.get("parameters", [])]
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        rows.append(("body (JSON)", schema.get("$ref", "").rpartition("/")[2]))
    rows += [(status, answer.get("description", "")) for status, answer in sorted(operation["responses"].items())]
    table = "".join(f"<tr><td><code>{escape(name)}</code></td><td>{escape(text)}</td></tr>" for name, text in rows)
    return (
        f"<section><code><span class=m>{escape(method)}</span> {escape(path)}</code>"
        f"<div>{escape(operation.get('description', ''))}</div><table>{table}</table></section>"
    )
