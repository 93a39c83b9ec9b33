"""A real browser for tests of pages: headless Chromium, driven through its WebDriver.

`conftest.py` has the fixture `browser`, one for a session. Only the name localhost
resolves. So it is an error if a page loads something from another host.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import base64
import ctypes
import os
import shutil
import signal
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.remote.remote_connection import RemoteConnection

PHONE = 360  # pixels: the narrowest screen that a page must fit
NARROW = 600  # pixels: below this width the browser lays out a page as a phone does
PR_SET_PDEATHSIG = 1


class Browser:
    """A headless Chromium. Raises RuntimeError if none is installed."""

    def __init__(self) -> None:
        programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
        if None in programs:
            raise RuntimeError("no chromium or no chromedriver: run ci/setup --test")
        options = ChromeOptions()
        options.binary_location = str(programs[0])
        for argument in (
            "--headless=new",
            "--remote-debugging-pipe",  # Chromium ends when this pipe is closed
            "--disable-dev-shm-usage",
            "--hide-scrollbars",  # scrollbars would make the page narrower
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
        ):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        # Chromium leaves folders behind in its folder for temporary files.
        self._temporary = tempfile.TemporaryDirectory(prefix="ipclab-browser-")
        service = ChromeService(
            str(programs[1]),
            env={**os.environ, "TMPDIR": self._temporary.name},
            popen_kw={"preexec_fn": _end_with_parent},
        )
        self._driver = Chrome(options, service)
        # A limit for scripts that hang. It is long, because axe-core takes minutes for
        # a page on a loaded machine.
        self._driver.set_script_timeout(600)
        connection = self._driver.command_executor
        assert isinstance(connection, RemoteConnection)
        connection.client_config.timeout = 660

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.quit()
        self._temporary.cleanup()

    def open(
        self,
        where: Path | str,
        width: int = 1100,
        height: int = 800,
        dark: bool = False,
        printed: bool = False,
    ) -> Page:
        """Load a file or URL as a reader with such a screen sees it.

        `width` and `height` are CSS pixels. If `width` is below NARROW, the screen is
        that of a phone. `printed` uses the style for paper. The page is valid until the
        next `open`.
        """
        address = where.resolve().as_uri() if isinstance(where, Path) else where
        page = Page(self._driver)
        page.show(width, height, dark, printed)
        self._driver.get("about:blank")  # then a changed fragment loads the page again
        _log(self._driver)
        self._driver.get(address)
        return page


class Page:
    """A page that was loaded and rendered."""

    def __init__(self, driver: Chrome) -> None:
        self._driver = driver
        self.width = 0
        self._errors: list[str] = []

    @property
    def errors(self) -> list[str]:
        """The errors in the console since the page was opened.

        They come from scripts that threw, from `console.error`, and from files that
        could not be loaded.
        """
        self._errors += [
            entry["message"]
            for entry in _log(self._driver)
            if entry["level"] == "SEVERE"
        ]
        return self._errors

    @property
    def text(self) -> str:
        """The text that a reader can read, without hidden or folded parts."""
        return str(self.run("return document.body.innerText"))

    @property
    def html(self) -> str:
        """The document after its scripts ran."""
        return str(self.run("return document.documentElement.outerHTML"))

    @property
    def scroll_width(self) -> int:
        """Pixels from the left to the right end of the page. On a good page this is at
        most `width`.
        """
        return int(self.run("return document.documentElement.scrollWidth"))

    @property
    def too_wide(self) -> list[str]:
        """The innermost elements that reach beyond the screen; empty if none does.
        Elements in a box that scrolls separately do not count.
        """
        if self.scroll_width <= self.width:
            return []
        return list(self.run(_TOO_WIDE, self.width)) or [
            f"the page is {self.scroll_width} pixels wide"
        ]

    @property
    def broken_links(self) -> list[str]:
        """Addresses of links, pictures and the like that lead nowhere.

        Files and fragments are looked up; addresses on the network are not.
        """
        addresses: list[tuple[str, str]] = [tuple(x) for x in self.run(_ADDRESSES)]
        return [said for said, full in addresses if not self._leads(full)]

    def show(
        self,
        width: int = 1100,
        height: int = 800,
        dark: bool = False,
        printed: bool = False,
    ) -> None:
        """Show the page, which stays loaded, as a reader with another screen sees it.
        The arguments are those of Browser.open.
        """
        self.width = width
        screen = {"width": width, "height": height, "deviceScaleFactor": 1}
        self._driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride", {**screen, "mobile": width < NARROW}
        )
        colours = {
            "name": "prefers-color-scheme",
            "value": "dark" if dark else "light",
        }
        media = {"media": "print" if printed else "", "features": [colours]}
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that a script returns; the script sees `arguments`."""
        return self._driver.execute_script(script, *arguments)

    def press(self, *keys: str) -> None:
        """Press keys one after another: texts, or `selenium...Keys`."""
        actions = ActionChains(self._driver)
        for key in keys:
            actions.send_keys(key)
        actions.perform()

    def screenshot(self, path: Path) -> None:
        """The whole page, not only what fits the screen, as a PNG file."""
        self._save("Page.captureScreenshot", path, captureBeyondViewport=True)

    def pdf(self, path: Path) -> None:
        """The page as it is printed on A4."""
        self._save(
            "Page.printToPDF", path, paperWidth=8.27, paperHeight=11.69, landscape=False
        )

    def _save(self, command: str, path: Path, **arguments: Any) -> None:
        answer = self._driver.execute_cdp_cmd(command, arguments)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _leads(self, address: str) -> bool:
        parts = urlsplit(address)
        if parts.scheme != "file":
            return True
        path, fragment = Path(unquote(parts.path)), unquote(parts.fragment)
        if not path.exists():
            return False
        if not fragment or path.suffix != ".html":
            return True
        if path.as_uri() == self._driver.current_url.partition("#")[0]:
            return bool(self.run(_HAS_FRAGMENT, fragment))
        return fragment in _fragments(path)


class _Fragments(HTMLParser):
    """Collects what the fragment of an address can name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and (name == "id" or (tag == "a" and name == "name")):
                self.found.add(value)


def _fragments(path: Path) -> set[str]:
    parser = _Fragments()
    parser.feed(path.read_text(encoding="utf-8"))
    return parser.found


def _log(driver: Chrome) -> list[dict[str, Any]]:
    """What the console printed since the last call."""
    return list(driver.get_log("browser"))  # type: ignore[no-untyped-call]


def _end_with_parent() -> None:
    """Runs in the process of chromedriver before chromedriver starts, so that a killed
    test leaves no browser.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


_ADDRESSES = """
const found = [];
for (const name of ["href", "src", "xlink:href"])
  for (const element of document.querySelectorAll(`[${CSS.escape(name)}]`)) {
    const said = element.getAttribute(name);
    found.push([said, new URL(said, document.baseURI).href]);
  }
return found;
"""

_HAS_FRAGMENT = """
return document.getElementById(arguments[0]) !== null ||
  document.getElementsByName(arguments[0]).length > 0;
"""

_TOO_WIDE = """
const screen = arguments[0];
const scrolls = (element) => {
  for (let at = element.parentElement; at && at !== document.body;
       at = at.parentElement)
    if (getComputedStyle(at).overflowX !== "visible") return true;
  return false;
};
const wide = [...document.body.querySelectorAll("*")].filter((element) =>
  element.getBoundingClientRect().right > screen + 0.5 && !scrolls(element));
return wide
  .filter((element) => !wide.some((other) =>
    other !== element && element.contains(other)))
  .slice(0, 10)
  .map((element) => element.outerHTML.slice(0, 120));
"""
