"""Rendering without a display: selects MuJoCo's drawing library before MuJoCo is imported."""

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from actorq.errors import UserError

_VARIABLE = "MUJOCO_GL"
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
