"""What is prepared once for a graph: its FP32 session, and the forms in which its versions are emitted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from actorq.quantization.footprint import Footprint
from actorq.quantization.graph import Graph
from actorq.quantization.shrinking import Shrinker
from quantizer_service.emission.ladder import Ladder
from quantizer_service.emission.origin import Left
from quantizer_service.emission.reference import Reference

# Sparse forms whose plans are kept. Masks change rarely, and units that come back do so within a few versions.
MAX_FORMS = 4


@dataclass
class Form:
    """A policy as schemes see it: the published graph, or without the units that do not count in some versions.

    widths: units of each layer that lost some, published and left, by the layer's name.
    ladders: of the schemes that were asked for.
    """

    graph: Graph
    widths: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    ladders: dict[str, Ladder] = field(default_factory=dict)

    @cached_property
    def reference(self) -> Reference:
        """Runs the form in FP32, for statistics of its tensors."""
        return Reference(self.graph)


class Topology:
    """A graph and its forms; not safe for several threads.

    Raises InvalidInputError when the graph takes too much to run, or does not run.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        # Before ONNX Runtime sees it, which computes constants of any size when it opens a session.
        self.footprint = Footprint(graph.model, tuple(graph.inputs))
        self.reference = Reference(graph)
        self.shrinker = Shrinker(graph)
        self.whole = Form(graph)
        self._forms: dict[bytes, Form] = {}
        self._latest: dict[str, Ladder] = {}

    def form(self, parameters: Mapping[str, NDArray[Any]]) -> tuple[Form, Left | None]:
        """The form that a version with these parameters takes, and what is left of it there.

        parameters: checked by the graph. A version of which every unit counts takes the graph as it was published, and
        nothing is left out.
        """
        survivors = self.shrinker.survivors(parameters)
        left = None if survivors is None else self.shrinker.parameters(parameters, survivors)
        if survivors is None or left is None:
            return self.whole, None
        form = self._forms.pop(survivors.key, None) or Form(
            self.shrinker.graph(survivors),
            {name: widths for name, widths in self.shrinker.widths(survivors).items() if widths[0] != widths[1]},
        )
        self._forms[survivors.key] = form
        while len(self._forms) > MAX_FORMS:
            del self._forms[next(iter(self._forms))]
        return form, Left(form.reference, left)

    def latest(self, scheme: str) -> Ladder | None:
        """The ladder that emitted the newest version in a scheme."""
        return self._latest.get(scheme)

    def remember(self, scheme: str, ladder: Ladder) -> None:
        """Say which ladder emits the newest version in a scheme."""
        self._latest[scheme] = ladder
