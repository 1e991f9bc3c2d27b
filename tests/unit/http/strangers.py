"""Schemathesis as a stranger who has read /openapi.json, and tries everything that it says and does not say."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

RUN_S = 240


async def try_everything(url: str, folder: Path, *, examples: int, seed: int) -> None:
    """Fails with what it found: an answer that the description does not allow, or a server error."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--checks", "all"]
    command += ["--max-examples", str(examples), "--seed", str(seed), "--request-timeout", "20", "--no-color"]
    command += ["--continue-on-failure", "--generation-database", "none"]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(RUN_S):
            output, _nothing = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = output.decode(errors="replace")
    assert process.returncode == 0, text[-8_000:]
    assert "Stateful" in text, text[-8_000:]
