"""MuJoCo in this process: how it draws without a display, chosen before its import, and where its warnings go."""

import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from actorq.errors import UserError

_log = logging.getLogger(__name__)
_VARIABLE = "MUJOCO_GL"
# The most different warnings that a process logs. Some contain a time or a number, so every episode may have a new one.
_MOST_WARNINGS = 10
_PROBE = (
    "import mujoco\n"
    "context = mujoco.GLContext(64, 64)\n"
    "context.make_current()\n"
    "mujoco.MjrContext(mujoco.MjModel.from_xml_string('<mujoco/>'), mujoco.mjtFontScale.mjFONTSCALE_100)\n"
    "import os; os._exit(0)\n"
)
# All probes together must finish within the watchdog's limit for a call to an environment.
_PROBE_S = 15.0
SHADOW_SIZE = 1024
"""Pixels of a shadow's side in pictures for people."""
# Values of the variable with which MuJoCo does not draw.
_OFF = ("disable", "disabled", "off", "false", "0")
# Mesa's EGL needs the platform "surfaceless" to draw without a graphics card.
_CANDIDATES: tuple[Mapping[str, str], ...] = (
    {_VARIABLE: "egl"},
    {_VARIABLE: "egl", "EGL_PLATFORM": "surfaceless"},
    {_VARIABLE: "osmesa"},
)


def wants_mujoco(entry_point: object) -> bool:
    """Whether a Gymnasium environment with this entry point is one of MuJoCo's."""
    return isinstance(entry_point, str) and ".mujoco" in entry_point


def prepare_mujoco(rendered: bool) -> None:
    """Select how MuJoCo draws in this process: with EGL or OSMesa if `rendered`, otherwise not at all.

    Keeps MUJOCO_GL if it is set. Raises UserError when neither library works.
    """
    if os.environ.get(_VARIABLE):
        return
    if not rendered:
        os.environ[_VARIABLE] = "disabled"
        return
    for candidate in _CANDIDATES:
        if _works(candidate):
            os.environ.update(candidate)
            return
    raise UserError(
        "this machine cannot render without a display: MuJoCo works neither with EGL nor with OSMesa; install libegl1 "
        "and a driver (libgl1-mesa-dri renders on the processor) or libosmesa6, or set MUJOCO_GL"
    )


def require_pictures(environment_id: str) -> None:
    """As `prepare_mujoco`, for an environment whose observations are pictures.

    Raises UserError also when drawing is turned off in this process.
    """
    prepare_mujoco(rendered=True)
    if (chosen := os.environ[_VARIABLE]).lower() in _OFF:
        raise UserError(
            f"environment {environment_id}: its observations are pictures, but {_VARIABLE} is {chosen}; unset it, and "
            "make no MuJoCo environment without pictures earlier in the same process"
        )


def log_mujoco_warnings() -> None:
    """Log MuJoCo's warnings in this process, if it is imported and has no other handler.

    Without a handler MuJoCo prints each warning, and appends it to a file in the working folder, which may then grow
    forever.
    """
    mujoco = sys.modules.get("mujoco")
    if mujoco is not None and mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_Warnings())


class _Warnings:
    """Logs each different warning once, up to a number of them."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self, message: str) -> None:
        if message in self._seen or len(self._seen) == _MOST_WARNINGS:
            return
        self._seen.add(message)
        # The models of Gymnasium have deprecated attributes, which its users cannot change.
        _log.log(logging.INFO if "deprecated" in message else logging.WARNING, "MuJoCo: %s", message)
        if len(self._seen) == _MOST_WARNINGS:
            _log.warning("MuJoCo: further warnings are not logged")


def draw_fast(model: Any, shadows: int = SHADOW_SIZE) -> None:
    """Turn off antialiasing and coarsen the shadows of a MuJoCo model. Call it before the first picture.

    Mesa draws on the processor. This reduces its time for a picture of 640x480 from 180 ms to 30 ms.

    shadows: pixels of a shadow's side.
    """
    model.vis.quality.offsamples = 0
    model.vis.quality.shadowsize = min(model.vis.quality.shadowsize, shadows)


def _works(candidate: Mapping[str, str]) -> bool:
    """Whether drawing works with these variables.

    Each candidate needs its own child process, because a process has only one attempt.
    """
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _PROBE],
            env={**os.environ, **candidate},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_PROBE_S,
        )
    except subprocess.TimeoutExpired:
        return False
    return tried.returncode == 0
