"""Helpers of all parts of ``aio``: checks of arguments, pauses, retries, awaitable context managers."""
