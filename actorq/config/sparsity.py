"""Settings of sparse training."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from actorq.config.numbers import Fraction, PositiveFloat, PositiveInt, Whole
from actorq.config.settings import Settings
from actorq.errors import UserError

SparsityMethod = Literal["dense", "tiny", "static", "set", "rigl", "rlx2"]
# The longer returns and the replay of rlx2 belong to the run, not to one of its networks.
PartMethod = Literal["dense", "tiny", "static", "set", "rigl"]
Part = Literal["actor", "critic"]
# Methods whose masks change.
_CHANGING = ("set", "rigl", "rlx2")


class SparsityConfig(Settings):
    """Training with sparse networks from the first update on (RLx2, arXiv 2205.15043)."""

    method: SparsityMethod = Field(
        "dense",
        description="dense; tiny (dense, with as few weights as the sparse networks); static (fixed random masks); set "
        "(weights grow at random); rigl (weights grow where gradients are largest); rlx2 (rigl, with multi-step "
        "targets and a replay of dynamic capacity; not with dqn)",
    )
    actor_method: PartMethod | None = Field(
        None, description="method of the policy alone, also of DQN's network; none: the one of sparsity.method"
    )
    critic_method: PartMethod | None = Field(
        None, description="method of the critics alone; none: the one of sparsity.method"
    )
    actor: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.9, description="share of the policy's weights that are 0; also for DQN's network"
    )
    critic: Annotated[float, Field(ge=0, lt=1)] = Field(0.85, description="share of the critics' weights that are 0")
    period_updates: PositiveInt = Field(10_000, description="gradient updates between two changes of the masks")
    replaced: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="zeta_0: share of a layer's weights replaced by the first change; decays to 0 as a cosine"
    )
    until: float = Field(1.0, gt=0, le=1, description="share of the run's updates after which masks stay fixed")
    structured: bool = Field(
        False,
        description="give all units of a policy layer the same number of inputs and drop units of little effect, which "
        "makes the emitted policy narrower; with set, rigl or rlx2",
    )
    compressed_products: bool = Field(
        True,
        description="skip zeros in the learner's products where this is faster: on a CPU with MKL, in large layers "
        "with at most 10 % active weights (15 % for gradients of weights)",
    )

    @model_validator(mode="after")
    def _method_fits(self) -> "SparsityConfig":
        given = [name for name in ("actor", "critic", "actor_method", "critic_method") if name in self.model_fields_set]
        if given and "method" not in self.model_fields_set:
            raise ValueError(
                f"sparsity.{given[0]} needs sparsity.method: networks are dense without it; set a method, such as rlx2"
            )
        if self.structured and (method := self.method_of("actor")) not in _CHANGING:
            raise ValueError(
                "sparsity.structured needs a policy with changing masks: sparsity.method or sparsity.actor_method set, "
                f"rigl or rlx2, got {method}"
            )
        return self

    def method_of(self, part: Part) -> SparsityMethod:
        """The method of the policy or of the critics."""
        own: PartMethod | None = self.actor_method if part == "actor" else self.critic_method
        # With `dense`, all parts are dense.
        return self.method if own is None or self.method == "dense" else own

    @property
    def methods(self) -> frozenset[SparsityMethod]:
        """The methods of all parts."""
        return frozenset((self.method_of("actor"), self.method_of("critic")))

    @property
    def topology(self) -> dict[str, Any]:
        """The settings that determine the masks, as JSON values. A resumed run may change the other settings."""
        parts = {"actor", "critic", "actor_method", "critic_method", "structured"}
        return self.model_dump(include={"method"} if self.method == "dense" else {"method", *parts})

    def check_changes(self, updates: float) -> None:
        """Raise UserError when masks should change, but never would in a run with this number of gradient updates."""
        last = self.until * updates
        if not self.methods.isdisjoint(_CHANGING) and self.period_updates >= last:
            raise UserError(
                f"sparsity.period_updates: expected fewer than the {last:.0f} updates in which masks may change, got "
                f"{self.period_updates}: masks would never change; use about a hundredth, or method static"
            )


class MultiStepConfig(Settings):
    """Targets that begin with one step and become longer during the run (RLx2, arXiv 2205.15043, sec. 4.2)."""

    n_step: Annotated[Whole, Field(ge=2)] = Field(3, description="environment steps of the longer returns")
    after: Fraction = Field(0.1, description="share of the run's environment steps after which returns become longer")


class DynamicCapacityConfig(Settings):
    """A replay that drops transitions too far from the policy (RLx2, arXiv 2205.15043, sec. 4.2)."""

    enabled: bool | None = Field(
        None, description="drop transitions that are far from the policy; none: only if sparsity.method is rlx2"
    )
    threshold: PositiveFloat = Field(
        0.2,
        description="distance between the policy's and the oldest stored actions above which the oldest are dropped "
        "(half the mean squared difference; actions scaled to [-1, 1])",
    )
    min_size: PositiveInt = Field(100_000, description="number of transitions that are kept at any distance")
    period_steps: PositiveInt = Field(10_000, description="environment steps between checks of the oldest transitions")
    oldest: PositiveInt = Field(2_048, description="number of oldest transitions that are checked")
    dropped: Annotated[float, Field(gt=0, lt=1)] = Field(0.1, description="share of the replay that is dropped at once")
