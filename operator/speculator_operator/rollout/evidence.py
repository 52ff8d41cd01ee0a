"""Which blocks are evidence of what: plan generations say it."""

from collections.abc import Iterable

from speculator_runtime.contracts.plan import Block, VersionRef

from .state import RunState


def oldest_generation(state: RunState) -> int:
    """Blocks of older plan generations are evidence of nothing that is still open."""
    if state.candidate is None:
        return state.fallback.from_generation
    return min(state.candidate.first_generation, state.fallback.from_generation)


def evidence_owner(state: RunState, generation: int) -> VersionRef | None:
    """The version under which blocks of a plan generation are stored: the candidate's run, else the stable drafter's
    holdback; None when the generation belongs to neither."""
    if state.candidate is not None and generation >= state.candidate.first_generation:
        return state.candidate.version
    if state.stable is not None and generation >= state.fallback.from_generation:
        return state.stable
    return None


def since(blocks: Iterable[Block], generation: int) -> list[Block]:
    """Blocks of this plan generation and later ones."""
    return [block for block in blocks if block.generation >= generation]


def latest(blocks: Iterable[Block], per_pod: int) -> list[Block]:
    """Each pod's latest blocks, so many of them; blocks that claim one identity stay together."""
    by_pod: dict[str, dict[tuple[int, int], list[Block]]] = {}
    for block in blocks:
        by_pod.setdefault(block.pod_uid, {}).setdefault((block.generation, block.index), []).append(block)
    return [block for _, found in sorted(by_pod.items()) for key in sorted(found)[-per_pod:] for block in found[key]]


def through(blocks: Iterable[Block]) -> str:
    """The last block of each pod and generation, as `UID/GENERATION/INDEX,...`: what a decision had seen."""
    last: dict[tuple[str, int], int] = {}
    for block in blocks:
        key = (block.pod_uid, block.generation)
        last[key] = max(last.get(key, -1), block.index)
    return ",".join(f"{uid}/{generation}/{index}" for (uid, generation), index in sorted(last.items()))


def seen(blocks: Iterable[Block], limits: str) -> list[Block]:
    """The blocks that a decision had seen, from what `through` wrote. Raises ValueError on other text."""
    last: dict[tuple[str, int], int] = {}
    for entry in filter(None, limits.split(",")):
        uid, generation, index = entry.rsplit("/", 2)
        last[(uid, int(generation))] = int(index)
    return [block for block in blocks if block.index <= last.get((block.pod_uid, block.generation), -1)]
