"""The call in which a thread or asyncio task waits, by library, and what it waits for."""
