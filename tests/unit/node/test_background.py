"""A task in the background that fails is told of; one that is done or was stopped is not."""

from __future__ import annotations

import asyncio

from trimtab.node.background import defect_of, telling


def test_only_what_failed_is_told() -> None:
    told: list[BaseException] = []
    wrong = ValueError("broken")

    async def fail() -> None:
        raise wrong

    async def story() -> None:
        tasks = [asyncio.create_task(each) for each in (fail(), asyncio.sleep(0), asyncio.sleep(3600))]
        for task in tasks:
            task.add_done_callback(telling(told.append))
        await asyncio.wait(tasks[:2])
        tasks[2].cancel()
        await asyncio.wait(tasks)
        assert [defect_of(task) for task in tasks] == [wrong, None, None]

    asyncio.run(story())
    assert told == [wrong]
