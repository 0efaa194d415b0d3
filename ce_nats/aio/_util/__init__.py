"""Helpers of all parts of ``aio``: checks of arguments, pauses, repeated requests, awaitable context managers."""
