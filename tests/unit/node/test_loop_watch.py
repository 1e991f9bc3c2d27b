"""A blocked loop is measured, counted and, when it was long, told."""

import asyncio

from trimtab.node.loop_watch import BUCKETS_S, LoopWatch


def block(seconds):
    """The very thing that is measured."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        pass


def test_a_long_block_is_counted_and_told_and_a_short_one_only_counted():
    async def story():
        told = []
        watch = LoopWatch(told.append, every_s=0.001)
        watch.start()
        await asyncio.sleep(0.01)
        block(0.03)
        await asyncio.sleep(0.005)
        assert told == []
        assert 0.025 < watch.longest_lately_s == watch.longest_s
        assert sum(watch.buckets[BUCKETS_S.index(0.05) :]) >= 1
        block(0.25)
        await asyncio.sleep(0.005)
        assert len(told) == 1
        assert "nothing could run here for 2" in told[0]
        assert sum(watch.buckets) == watch.count
        watch.stop()
        count = watch.count
        await asyncio.sleep(0.01)
        assert watch.count == count

    asyncio.run(story())


def test_waiting_for_a_processor_is_told_apart():
    async def story():
        told, waited = [], 5.0
        watch = LoopWatch(told.append, every_s=0.001, waited_s=lambda: waited)
        watch.start()
        await asyncio.sleep(0.005)
        block(0.25)
        waited += 0.24
        await asyncio.sleep(0.005)
        assert watch.longest_s < 0.2 < watch.starved_s
        assert len(told) == 1 and "for a processor" in told[0]
        watch.stop()

    asyncio.run(story())
