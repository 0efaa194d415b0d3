package io.cenats.spark;

/** What was received is not what the specifications allow. A row has but the code, so there is no text and no trace. */
final class DecodeError extends Exception {
    private static final long serialVersionUID = 1;

    final ErrorCode code;

    DecodeError(ErrorCode code) {
        super(code.toString(), null, false, false);
        this.code = code;
    }

    /** @throws DecodeError with a code, unless something is as it has to be */
    static void require(boolean isValid, ErrorCode code) throws DecodeError {
        if (!isValid) {
            throw new DecodeError(code);
        }
    }
}
