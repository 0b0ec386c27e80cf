"""Time of work that is captured in a graph."""

from collections.abc import Callable
from statistics import median

import torch


def graph_us(run: Callable[[], None], *, calls: int = 1, repeats: int) -> tuple[float, float]:
    """Median and spread (max - min) in us of one of the `calls` that `run` makes, over `repeats` replays of it.

    It runs once before the capture, and two replays more than are counted come first.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(repeats + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1000 * begin.elapsed_time(end) / calls)
    return median(times[2:]), max(times[2:]) - min(times[2:])
