"""Random numbers go on where they were, and every rank's state comes to rank 0 as it is."""

import random

import numpy as np
import pytest
import torch

from runner import checkpoint, rank_state
from tests.fakes import on_ranks


def draws():
    """Some numbers of every generator. Gaussians in odd numbers: Python and numpy hold the second of a pair back."""
    found = [random.random(), random.gauss(), random.randrange(10**9), random.sample(range(100), 5)]
    found += [
        np.random.rand(3).tolist(),
        np.random.standard_normal(3).tolist(),
        np.random.permutation(9).tolist(),
    ]
    found += [torch.rand(3).tolist(), torch.randn(17).tolist(), torch.randperm(9).tolist()]
    return [*found, torch.nn.functional.dropout(torch.ones(50)).tolist()]


def seed(number):
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


@pytest.mark.parametrize("drawn_before", [0, 1, 2])
def test_generators_go_on_bit_for_bit(tmp_path, drawn_before):
    seed(drawn_before)
    for _ in range(drawn_before):
        draws()
    path = checkpoint.commit(tmp_path, "step-00000001", {}, {"random": rank_state.random_state()}, {})
    expected = [draws(), draws()]
    seed(99)
    assert draws() != expected[0]
    rank_state.set_random_state(checkpoint.load(path)[1]["random"])
    assert [draws(), draws()] == expected


def test_taking_the_state_draws_nothing():
    seed(1)
    expected = draws()
    seed(1)
    rank_state.random_state()
    assert draws() == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_s_generator_goes_on():
    torch.rand(1, device="cuda")
    state = rank_state.random_state()
    expected = torch.rand(5, device="cuda").tolist()
    rank_state.set_random_state(state)
    assert torch.rand(5, device="cuda").tolist() == expected


def of(rank):
    """State of another size on each rank."""
    return {
        "rank": rank,
        "sums": torch.arange(rank * 1000, dtype=torch.float64),
        "nested": {
            "values": [None, 0.1 * rank, "text"],
            "half": torch.full((2, 3), rank, dtype=torch.bfloat16),
        },
    }


@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_rank_gets_every_rank_s_state_in_order(size):
    gathered, *others = on_ranks(size, lambda rank: rank_state.gather(rank, of(rank.rank)))
    assert others == [gathered] * (size - 1)
    assert len(gathered) == size
    for rank, state in enumerate(map(rank_state.unpacked, gathered)):
        expected = of(rank)
        assert (state["rank"], state["nested"]["values"]) == (rank, expected["nested"]["values"])
        assert torch.equal(state["sums"], expected["sums"])
        assert torch.equal(state["nested"]["half"], expected["nested"]["half"])
        assert state["nested"]["half"].dtype is torch.bfloat16
