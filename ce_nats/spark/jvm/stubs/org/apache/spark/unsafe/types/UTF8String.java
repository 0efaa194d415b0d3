package org.apache.spark.unsafe.types;

public final class UTF8String {
    private UTF8String() {}

    public static UTF8String fromBytes(byte[] utf8) {
        return null;
    }

    public static UTF8String fromString(String text) {
        return null;
    }

    public byte[] getBytes() {
        return null;
    }

    public Object getBaseObject() {
        return null;
    }

    public long getBaseOffset() {
        return 0;
    }

    public int numBytes() {
        return 0;
    }
}
