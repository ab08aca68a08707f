"""Writes an environment's pictures to an MP4 video."""

import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.errors import UserError


class Video:
    """An MP4 file (H.264), written picture by picture: `with Video(...) as video: video.add(...)`.

    The file appears under its name when it is complete. An interrupted video leaves no file.
    """

    def __init__(self, path: Path, frames_per_second: float) -> None:
        """Open the video. Raises UserError when it cannot be written to `path`."""
        try:
            import av
        except ImportError:
            raise UserError("--record needs PyAV: pip install 'actorq[video]'") from None
        if path.is_dir():
            raise UserError(f"--record: {path} is a folder; name a file in it")
        self._path = path
        self._part = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            # PyAV reports an unwritable file only at the first picture.
            self._part.touch()
            self._container: Any = av.open(str(self._part), "w", format="mp4")
        except OSError as error:
            raise UserError(f"--record: cannot write {path} ({error.strerror})") from None
        self._frame_from_array = av.VideoFrame.from_ndarray
        self._rate = Fraction(frames_per_second).limit_denominator(1000)
        self._stream: Any = None

    def __enter__(self) -> "Video":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        try:
            if error is None:
                self._finish()
            else:
                self._container.close()
        finally:
            self._part.unlink(missing_ok=True)

    def add(self, picture: NDArray[np.uint8]) -> None:
        """Add the next picture, uint8[height, width, 3]. All pictures must have the same size."""
        # Players need even sizes, so the last row or column may be repeated.
        height, width = picture.shape[:2]
        even = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if self._stream is None:
            self._stream = self._container.add_stream("libx264", rate=self._rate)
            self._stream.height, self._stream.width = even.shape[:2]
            self._stream.pix_fmt = "yuv420p"
        frame = self._frame_from_array(np.ascontiguousarray(even), format="rgb24")
        self._container.mux(self._stream.encode(frame))

    def _finish(self) -> None:
        if self._stream is not None:
            self._container.mux(self._stream.encode(None))
        self._container.close()
        os.replace(self._part, self._path)
