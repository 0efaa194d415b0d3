package io.cenats.spark;

/** How an event is encoded in a NATS message; mirrors {@code ContentMode} of {@code ce_nats/codec/mode.py}. */
enum ContentMode {
    BINARY("binary"),
    STRUCTURED("structured");

    private final String text;

    ContentMode(String text) {
        this.text = text;
    }

    @Override
    public String toString() {
        return text;
    }
}
