package io.cenats.spark;

/** Error codes that a captured message can have; mirrors {@code ErrorCode} of {@code ce_nats/errors.py}. */
enum ErrorCode {
    // The message as a whole.
    NOT_A_CLOUDEVENT("not-a-cloudevent"),
    BATCH_NOT_SUPPORTED("batch-not-supported"),
    UNSUPPORTED_FORMAT("unsupported-format"),
    UNSUPPORTED_CHARSET("unsupported-charset"),

    // Attributes.
    MISSING_ATTRIBUTE("missing-attribute"),
    DUPLICATE_ATTRIBUTE("duplicate-attribute"),
    EMPTY_ATTRIBUTE("empty-attribute"),
    INVALID_ATTRIBUTE_NAME("invalid-attribute-name"),
    INVALID_ATTRIBUTE_TYPE("invalid-attribute-type"),
    INVALID_CHARACTER("invalid-character"),
    UNSUPPORTED_SPECVERSION("unsupported-specversion"),
    INTEGER_OUT_OF_RANGE("integer-out-of-range"),
    INVALID_BOOLEAN("invalid-boolean"),
    INVALID_INTEGER("invalid-integer"),
    INVALID_BASE64("invalid-base64"),
    INVALID_MEDIA_TYPE("invalid-media-type"),
    INVALID_TIMESTAMP("invalid-timestamp"),
    INVALID_URI("invalid-uri"),

    // Header values.
    UNTERMINATED_QUOTE("unterminated-quote"),
    INVALID_PERCENT_ESCAPE("invalid-percent-escape"),
    INVALID_UTF8("invalid-utf8"),

    // JSON and data.
    INVALID_JSON("invalid-json"),
    NOT_AN_OBJECT("not-an-object"),
    DATA_CONFLICT("data-conflict"),
    INVALID_DATA("invalid-data"),
    DATA_NOT_DELIVERED("data-not-delivered"),

    // Headers.
    DUPLICATE_HEADER("duplicate-header"),
    INVALID_HEADER_NAME("invalid-header-name"),
    INVALID_HEADER_VALUE("invalid-header-value"),
    INVALID_HEADER_VERSION("invalid-header-version"),
    INVALID_HEADER_BLOCK("invalid-header-block");

    private final String text;

    ErrorCode(String text) {
        this.text = text;
    }

    @Override
    public String toString() {
        return text;
    }
}
