package io.cenats.spark;

/** How an event travels in a NATS message. */
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
