"""The search of the site without a browser: the theme's own script for browsers, in an engine for JavaScript."""

import json
from pathlib import Path

import quickjs

# Functions of a browser that the scripts need. The worker's answers are in `posted`.
_BROWSER = """
globalThis.console = {warn() {}, log() {}};
var posted = [], handler;
globalThis.self = globalThis;
globalThis.importScripts = () => {};
globalThis.postMessage = (message) => posted.push(message);
globalThis.addEventListener = (kind, called) => { if (kind === "message") handler = called; };
globalThis.Worker = class { postMessage(message) { handler({data: message}); } };
function sent(text) { posted.length = 0; new Worker().postMessage(JSON.parse(text)); }
function answered() { return JSON.stringify(posted); }
"""
_SETUP, _QUERY = 0, 2


class Search:
    """The search of a built site."""

    def __init__(self, site: Path) -> None:
        self._engine = quickjs.Context()
        (worker,) = (site / "assets" / "javascripts" / "workers").glob("search.*.min.js")
        scripts = (_BROWSER, worker.read_text("utf-8"), (site / "assets" / "search-query.js").read_text("utf-8"))
        for script in scripts:
            self._engine.eval(script)
        index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
        self._ask(_SETUP, {**index, "options": {"suggest": True}})

    def pages(self, query: str) -> list[str]:
        """The found pages, the best one first, without the section on each page."""
        (answer,) = self._ask(_QUERY, query)
        return [items[0]["location"].partition("#")[0] for items in answer["data"]["items"]]

    def _ask(self, kind: int, data: object) -> list[dict[str, dict[str, list[list[dict[str, str]]]]]]:
        self._engine.get("sent")(json.dumps({"type": kind, "data": data}))
        while self._engine.execute_pending_job():
            pass
        found: list[dict[str, dict[str, list[list[dict[str, str]]]]]] = json.loads(self._engine.get("answered")())
        return found
