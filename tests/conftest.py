"""Settings for all tests."""

from hypothesis import settings

# Other tests and a busy machine make single examples slow; the number of examples bounds the time.
settings.register_profile("ce_nats", deadline=None)
settings.load_profile("ce_nats")
