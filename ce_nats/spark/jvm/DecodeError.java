package io.cenats.spark;

/**
 * A message violates the specifications; mirrors {@code DecodeError} of {@code ce_nats/errors.py}.
 *
 * <p>A row has only the code, so the exception has no text and no stack trace.
 */
final class DecodeError extends Exception {
    private static final long serialVersionUID = 1;

    final ErrorCode code;

    DecodeError(ErrorCode code) {
        super(code.toString(), null, false, false);
        this.code = code;
    }

    /** @throws DecodeError with the code, if {@code isValid} is false */
    static void require(boolean isValid, ErrorCode code) throws DecodeError {
        if (!isValid) {
            throw new DecodeError(code);
        }
    }
}
