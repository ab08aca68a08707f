"""The runs of a comparison, and their order."""

from collections import Counter

import pytest

from actorq.errors import UserError
from actorq_apps.comparison.schedule import TORCH_ACTOR, ScheduledRun, Variant, grid, interleaved, seeds_of


def test_each_seed_has_all_variants_and_begins_with_another_one() -> None:
    variants = grid(("fp32", "int8", "torch"))
    schedule = interleaved(variants, (1, 2, 3, 7))
    assert [scheduled.seed for scheduled in schedule] == [1] * 3 + [2] * 3 + [3] * 3 + [7] * 3
    rounds = [[scheduled.variant.scheme for scheduled in schedule[start : start + 3]] for start in range(0, 12, 3)]
    assert rounds == [
        ["fp32", "int8", "torch"],
        ["int8", "torch", "fp32"],
        ["torch", "fp32", "int8"],
        ["fp32", "int8", "torch"],
    ]
    # No variant is always first or last in its round.
    assert Counter(each[0] for each in rounds[:3]) == Counter(each[-1] for each in rounds[:3])


def test_further_seeds_leave_the_order_of_the_first_as_it_was() -> None:
    variants = grid(("fp32", "int8"))
    assert interleaved(variants, (1, 2, 3))[:4] == interleaved(variants, (1, 2))


def test_a_grid_has_every_value_under_every_scheme() -> None:
    variants = grid(("fp32", "int8"), [["dqn.hidden-sizes", "64,64", "256,256"], ["--sparsity.actor", "0.5"]])
    assert [variant.name for variant in variants] == [
        "fp32, dqn.hidden-sizes 64,64, sparsity.actor 0.5",
        "int8, dqn.hidden-sizes 64,64, sparsity.actor 0.5",
        "fp32, dqn.hidden-sizes 256,256, sparsity.actor 0.5",
        "int8, dqn.hidden-sizes 256,256, sparsity.actor 0.5",
    ]
    assert variants[2].flags == ("--scheme", "fp32", "--dqn.hidden-sizes", "256,256", "--sparsity.actor", "0.5")
    assert ScheduledRun(variants[3], 2).name == "int8-dqn.hidden-sizes-256-256-sparsity.actor-0.5-seed2"


def test_a_value_and_its_negative_have_folders_of_their_own() -> None:
    names = {ScheduledRun(variant, 1).name for variant in grid(("int8",), [["dqn.n-step", "-1", "1"]])}
    assert names == {"int8-dqn.n-step-minus1-seed1", "int8-dqn.n-step-1-seed1"}


def test_a_boolean_setting_can_be_varied() -> None:
    assert Variant("int8", (("normalize-observations", "false"),)).flags[2:] == ("--no-normalize-observations",)
    assert Variant("int8", (("normalize-observations", "true"),)).flags[2:] == ("--normalize-observations",)


def test_torch_is_the_fp32_policy_with_other_actors() -> None:
    assert Variant("torch").flags == ("--scheme", "fp32")
    assert Variant("torch").actor_module == TORCH_ACTOR
    assert Variant("fp32").actor_module == ""


@pytest.mark.parametrize(("given", "seeds"), [([3], (1, 2, 3)), ([4, 2], (4, 2)), ([1], (1,))])
def test_one_number_is_a_count_of_seeds(given: list[int], seeds: tuple[int, ...]) -> None:
    assert seeds_of(given) == seeds


def test_too_many_seeds_are_refused() -> None:
    with pytest.raises(UserError, match=r"--seeds.* 10000"):
        seeds_of([99_999_999_999])


@pytest.mark.parametrize("given", [[0], [-1], [2, 2], [-1, 3], [1, 2**63]])
def test_no_seeds_and_equal_seeds_are_refused(given: list[int]) -> None:
    with pytest.raises(UserError, match=f"--seeds.*different.* {' '.join(map(str, given))}$"):
        seeds_of(given)


@pytest.mark.parametrize(
    ("schemes", "varied", "fact"),
    [
        (["int3"], [], "--schemes.* fp32, .*, torch, .*'int3'"),
        (["int8", "int8"], [], "--schemes and --vary.*once"),
        (["int8"], [["dqn.n-step"]], r"--vary.* dqn\.n-step$"),
        (["int8"], [["seed", "1", "2"]], "--vary.* seed; .*--seeds"),
        (["int8"], [["--target_return", "1", "2"]], "--vary.* target-return;"),
        (["int8"], [["dqn.n-step", "3", "3"]], "--schemes and --vary.*once"),
        (["int8"], [["dqn.n-steps", "3", "5"]], r"--vary.*'dqn\.n-steps'.*'dqn\.n-step'"),
        (["int8"], [["directory", "a", "b"]], "--vary.*'directory'"),
    ],
)
def test_a_wrong_grid_is_refused_in_one_line(schemes: list[str], varied: list[list[str]], fact: str) -> None:
    with pytest.raises(UserError, match=fact) as caught:
        grid(schemes, varied)
    assert "\n" not in str(caught.value)
