"""Error numbers of nats-server, ``err_code`` in responses of JetStream; the names are those of its source text."""

from __future__ import annotations

from typing import Final

CONSUMER_CREATE: Final = 10012  # JSConsumerCreateErrF, status 500; wraps errors of all kinds
CONSUMER_NOT_FOUND: Final = 10014  # JSConsumerNotFoundErr
NO_MESSAGE_FOUND: Final = 10037  # JSNoMessageFoundErr
NOT_ENABLED_FOR_ACCOUNT: Final = 10039  # JSNotEnabledForAccountErr
SEQUENCE_NOT_FOUND: Final = 10043  # JSSequenceNotFoundErrF
STREAM_INVALID_CONFIG: Final = 10052  # JSStreamInvalidConfigF, status 500
MESSAGE_EXCEEDS_MAXIMUM: Final = 10054  # JSStreamMessageExceedsMaximumErr
MESSAGE_DELETE_FAILED: Final = 10057  # JSStreamMsgDeleteFailedF, status 500; the message may have been deleted before
STREAM_NOT_FOUND: Final = 10059  # JSStreamNotFoundErr
STREAM_NOT_MATCH: Final = 10060  # JSStreamNotMatchErr, by Nats-Expected-Stream
WRONG_LAST_SEQUENCE: Final = 10071  # JSStreamWrongLastSequenceErrF
NOT_ENABLED: Final = 10076  # JSNotEnabledErr
STORE_FAILED: Final = 10077  # JSStreamStoreFailedF, status 503, for instance because the stream is full
HEADERS_EXCEED_MAXIMUM: Final = 10097  # JSStreamHeaderExceedsMaximumErr
ROLLUP_FAILED: Final = 10111  # JSStreamRollupFailedF, status 500
DUPLICATE_IN_PROCESS: Final = 10158  # JSStreamDuplicateMessageConflict: a message with the id is being replicated
UNKNOWN_LAST_SEQUENCE: Final = 10164  # JSStreamWrongLastSequenceConstantErr: a message of the subject is not stored yet
TTL_DISABLED: Final = 10166  # JSMessageTTLDisabledErr
TOO_MANY_REQUESTS: Final = 10167  # JSStreamTooManyRequests: max_buffered_msgs messages are not stored yet
ATOMIC_DISABLED: Final = 10174  # JSAtomicPublishDisabledErr
ATOMIC_INCOMPLETE: Final = 10176  # JSAtomicPublishIncompleteBatchErr
ATOMIC_DUPLICATE: Final = 10201  # JSAtomicPublishContainsDuplicateMessageErr
FAST_DISABLED: Final = 10205  # JSBatchPublishDisabledErr
FAST_INVALID_PATTERN: Final = 10206  # JSBatchPublishInvalidPatternErr, of the reply subject
FAST_INVALID_ID: Final = 10207  # JSBatchPublishInvalidBatchIDErr
FAST_UNKNOWN_ID: Final = 10208  # JSBatchPublishUnknownBatchIDErr
ATOMIC_TOO_MANY: Final = 10210  # JSAtomicPublishTooManyInflight
FAST_TOO_MANY: Final = 10211  # JSBatchPublishTooManyInflight

# JetStream does not exist for the account, or the server.
NO_JETSTREAM: Final = (NOT_ENABLED_FOR_ACCOUNT, NOT_ENABLED)
