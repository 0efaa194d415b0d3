"""Wanted messages are taken out of received bytes; everything else is passed on unchanged."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ce_nats.aio.link._frame_splitter import FrameSplitter
from tests.support.tables import each

WANTED = {b"1", b"22"}
STATUSES = [
    b"100 Idle Heartbeat",
    b"404 No Messages",
    b"408 Request Timeout",
    b"409 Leadership Change",
    b"423 Nats-Consumer-Id",
]


def sid_of(frame):
    """Return the sid of a frame, whose subject has no spaces."""
    return [word for word in frame.split(b" ") if word][2]


def message(sid, subject, reply=None, payload=b"", block=None, *, space=b" "):
    """Return a MSG or HMSG, with the message that it carries; no reply subject may be two spaces."""
    words = [b"MSG" if block is None else b"HMSG", subject, sid]
    words += [] if reply is None else [reply]
    words += [] if block is None else [b"%d" % len(block)]
    words += [b"%d" % (len(block or b"") + len(payload))]
    return space.join(words) + b"\r\n" + (block or b"") + payload + b"\r\n", (subject, reply or b"", payload, block)


def status(sid, line):
    return message(sid, b"_INBOX.x.1", payload=b"", block=b"NATS/1.0 " + line + b"\r\n\r\n")


def split(chunks, wanted=WANTED):
    """Return messages by sid, the bytes that are passed on, and whether the bytes are malformed."""
    splitter, messages, rest, is_malformed = FrameSplitter(), {}, [], False
    for chunk in chunks:
        unread = chunk
        while unread:
            found = splitter.feed(unread, wanted.__contains__)
            for sid, some in found.messages.items():
                messages.setdefault(sid, []).extend(some or ())
            rest.append(found.rest)
            is_malformed |= found.is_malformed
            unread = found.unread
    return {sid: some for sid, some in messages.items() if some}, b"".join(rest), is_malformed


OTHERS = [
    b"PING\r\n",
    b"PONG\r\n",
    b"+OK\r\n",
    b'INFO {"server_id":"A","connect_urls":["' + b"h" * 5000 + b'"]}\r\n',
    b"-ERR 'Permissions Violation for Subscription to \"a\"'\r\n",
    b"MSG a 2 0\r\n\r\n",
    message(b"12", b"a", None, b"MSG a 1 1\r\n1\r\n12")[0],
    message(b"3", b"a", b"r", b"MSG 1", b"NATS/1.0\r\na: b\r\n\r\n")[0],
]


# Each kind of message and operation, of two wanted subscriptions.
MIXED = [
    message(b"1", b"a.b", b"$JS.ACK.S.c.1.1.1.1.0", b"payload", b"NATS/1.0\r\nce-id: 1\r\n\r\n"),
    message(b"1", b"a.b", None, b"MSG a 22 1\r\nx\r\n"),
    message(b"22", b"a", b"r", b""),
    *(status(b"1", line) for line in STATUSES),
    message(b"22", b"a", b"", b"\r\n", b"NATS/1.0\r\n\r\n"),
    message(b"22", b"a", None, b"1", b"NATS/1.0\r\na: b\r\n\r\n", space=b"  "),
    message(b"1", b"\xc3\xbc\xff\x0b", b"\xff", bytes(range(256))),
]


def interleaved():
    """Return all frames of MIXED with all other operations between them, messages by sid, and the other bytes."""
    stream, messages, rest = [], {b"1": [], b"22": []}, []
    for number, (frame, parsed) in enumerate(MIXED):
        other = OTHERS[number % len(OTHERS)]
        stream += [frame, other]
        rest.append(other)
        messages[sid_of(frame)].append(parsed)
    return b"".join(stream), messages, b"".join(rest)


def test_messages_and_other_operations_are_separated_in_order():
    stream, messages, rest = interleaved()
    assert split([stream]) == (messages, rest, False)


def test_chunks_split_at_each_position():
    stream, messages, rest = interleaved()
    for at in range(len(stream) + 1):
        assert split([stream[:at], stream[at:]]) == (messages, rest, False), at


def test_chunks_of_one_byte():
    stream, messages, rest = interleaved()
    assert split([stream[at : at + 1] for at in range(len(stream))]) == (messages, rest, False)


@each("seed", range(100))
def test_chunks_of_any_size(seed):
    rng = Random(seed)
    stream, messages, rest = interleaved()
    cuts = sorted(rng.randrange(len(stream)) for _ in range(rng.randrange(60)))
    chunks = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)])]
    assert split(chunks) == (messages, rest, False)


@st.composite
def operations(draw):
    """Draw a frame, and its message if it is wanted."""
    if draw(st.booleans()):
        return draw(st.sampled_from(OTHERS)), None
    token = st.binary(min_size=1, max_size=20).map(lambda text: bytes(33 + byte % 94 for byte in text))
    block = st.none() | st.binary(max_size=40).map(lambda text: b"NATS/1.0\r\n" + text + b"\r\n\r\n")
    frame, parsed = message(
        draw(st.sampled_from([b"1", b"22", b"2"])),
        draw(token),
        draw(st.none() | st.just(b"") | token),
        draw(st.binary(max_size=60) | st.sampled_from(OTHERS)),
        draw(block),
        space=draw(st.sampled_from([b" ", b" ", b" ", b"  "])),
    )
    return frame, parsed


@given(st.lists(operations(), max_size=20), st.lists(st.integers(0, 4000), max_size=30))
def test_any_split_of_any_operations_has_the_same_result(frames, cuts):
    stream = b"".join(frame for frame, _ in frames)
    messages, rest = {}, b""
    for frame, parsed in frames:
        sid = sid_of(frame) if parsed else b""
        if sid in WANTED:
            messages.setdefault(sid, []).append(parsed)
        else:
            rest += frame
    cuts = sorted(min(cut, len(stream)) for cut in cuts)
    chunks = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)])]
    assert split(chunks) == (messages, rest, False)


@given(
    st.binary(max_size=200) | st.lists(st.sampled_from([b"MSG", b"HMSG", b" ", b"a", b"1", b"9", b"\r\n", b"\t", b"-"]))
)
def test_any_bytes_raise_nothing_and_invent_no_message(garbage):
    stream = garbage if isinstance(garbage, bytes) else b"".join(garbage)
    for chunks in ([stream], [stream[at : at + 1] for at in range(len(stream))]):
        messages, rest, _ = split(chunks)
        taken = sum(len(subject) + len(payload) for some in messages.values() for subject, _, payload, _ in some)
        assert taken + len(rest) <= len(stream)


@each(
    "line",
    [
        b"MSG a 1 r x",
        b"MSG a 1 -2",
        b"MSG a 1 +2",
        b"MSG a 1 1_0",
        b"MSG a 1 2 ",
        b"MSG a 1",
        b"MSG",
        b"MSG a 1 b c 2",
        b"MSG a 1 " + b"9" * 19,
        b"MSG a 1 " + b"9" * 5000,
        b"HMSG a 1 r 2",
        b"HMSG a 1 2",
        b"HMSG a 1 r x 2",
        b"HMSG a 1 r -1 2",
        b"HMSG a 1 r 3 2",
        b"HMSG a 1 r " + b"9" * 5000 + b" 2",
        b"HMSG a 1 b c 1 2",
        b"MSG a\n1 2",
        b"MSG a 1 1",
        b"MSG a 1 3",
        b"Message",
    ],
)
@each("before", [b"", b"MSG a 1 r 1\r\n1\r\n", b"PING\r\n"])
def test_malformed_messages_end_reading(line, before):
    stream = before + line + b"\r\n12\r\nMSG a 1 0\r\n\r\nPING\r\n"
    for chunks in ([stream], [stream[at : at + 1] for at in range(len(stream))]):
        messages, rest, is_malformed = split(chunks)
        assert messages == ({b"1": [(b"a", b"r", b"1", None)]} if before.startswith(b"MSG") else {})
        assert rest == (before if before.startswith(b"PING") else b"")
        assert is_malformed


@each("line", [b"MSG a 1 20\n", b"HMSG a 1 r 1 20\n", b"MSG a 1 2\r", b"MSG a 1 2\r\r\n"])
def test_end_of_a_line_is_checked_after_other_messages(line):
    stream = b"MSG a 1 1\r\n1\r\n" + line + b"12\r\n" + bytes(16) + b"\r\n"
    for chunks in ([stream], [stream[at : at + 1] for at in range(len(stream))]):
        assert split(chunks) == ({b"1": [(b"a", b"", b"1", None)]}, b"", True)


def test_invalid_line_of_another_subscription_is_not_skipped():
    """nats-py would wait for the end of the line."""
    stream = b"MSG a 2 1\r\n1\r\nMSG a 2 20\n" + b"MSG a 1 1\r\n1\r\n" * 2
    assert split([stream]) == ({}, b"MSG a 2 1\r\n1\r\n", True)


def test_malformed_size_of_headers_is_passed_on_for_other_subscriptions():
    """The size of the message is known; nats-py decides about the rest."""
    frame = b"HMSG a 2 3 2\r\n12\r\n"
    assert split([frame + b"MSG a 1 0\r\n\r\n"]) == ({b"1": [(b"a", b"", b"", None)]}, frame, False)


def test_reset_ends_an_error():
    splitter = FrameSplitter()
    assert splitter.feed(b"MSG\r\n", WANTED.__contains__).is_malformed
    splitter.reset()
    assert splitter.feed(b"MSG a 1 0\r\n\r\n", WANTED.__contains__).messages == {b"1": [(b"a", b"", b"", None)]}


@each("chunk", [b"MSG " + b"a" * 1000, b"HMSG a 1 r " + b"9" * 1000])
def test_line_without_an_end_is_limited(chunk):
    splitter, received = FrameSplitter(), 0
    while not splitter.feed(chunk if not received else b"a" * 1000, WANTED.__contains__).is_malformed:
        received += 1000
        assert received < 70_000


def test_line_of_a_wide_subject_is_read():
    frame, parsed = message(b"1", b"a" * 30_000, b"r", b"payload")
    assert split([frame[at : at + 999] for at in range(0, len(frame), 999)] + [frame]) == (
        {b"1": [parsed] * 2},
        b"",
        False,
    )


@each("last", range(len(MIXED[0][0])))
def test_each_byte_of_a_message_as_the_last_one_of_a_connection(last):
    """The part that has arrived is forgotten, and the whole message arrives on the next connection."""
    frame, parsed = MIXED[0]
    splitter = FrameSplitter()
    for chunk in (frame, frame[:last]):
        found = splitter.feed(chunk, WANTED.__contains__)
    assert found.messages.get(b"1", []) == []
    splitter.reset()
    found = splitter.feed(frame + frame, WANTED.__contains__)
    assert found == ({b"1": [parsed, parsed]}, b"", False, b"")


def test_sid_that_is_no_longer_wanted_has_its_last_message_passed_on_as_a_whole():
    frame, _ = MIXED[0]
    splitter = FrameSplitter()
    assert splitter.feed(frame[:-3], WANTED.__contains__).rest == b""
    assert splitter.feed(frame[-3:] + b"PING\r\n", set().__contains__)[:2] == ({b"1": None}, frame + b"PING\r\n")


def test_sid_that_becomes_wanted_has_the_current_message_passed_on():
    frame, parsed = MIXED[0]
    splitter = FrameSplitter()
    assert splitter.feed(frame[:-30], set().__contains__).rest == frame[:-30]
    assert splitter.feed(frame[-30:] + frame, WANTED.__contains__)[:2] == ({b"1": [parsed]}, frame[-30:])


@each("cut", range(25))
def test_nothing_after_an_error_is_read_until_the_error_is_processed(cut):
    """Which message a permissions violation refers to depends on the messages before and after it."""
    frame, parsed = MIXED[0]
    error = b"-ERR 'Permissions'\r\n"
    splitter, data, steps = FrameSplitter(), frame + error + frame + b"PING\r\n" + error, []
    for unread in (data[: len(frame) + cut], data[len(frame) + cut :]):
        while unread:
            found = splitter.feed(unread, WANTED.__contains__)
            steps += [*(one for some in found.messages.values() for one in some or ()), found.rest]
            unread = found.unread
    second = steps.index(parsed, steps.index(parsed) + 1)
    before, after = ([step for step in some if isinstance(step, bytes)] for some in (steps[:second], steps[second:]))
    assert steps[0] == parsed
    assert b"".join(before) == error
    assert b"".join(after) == b"PING\r\n" + error


def test_skipped_bytes_are_passed_on():
    splitter = FrameSplitter()
    splitter.skip(20)
    rest = b"MSG a 1 1\r\n1\r\n      "
    for at in range(20):
        assert splitter.feed(rest[at : at + 1], WANTED.__contains__).rest == rest[at : at + 1]
    assert splitter.feed(b"MSG a 1 1\r\n1\r\n", WANTED.__contains__).messages == {b"1": [(b"a", b"", b"1", None)]}


def test_large_messages_are_collected_without_copying_them_for_each_chunk():
    """A copy for each of 11,500 chunks would be 90 GB."""
    frame, parsed = message(b"1", b"a", b"r", bytes(16 * 2**20), b"NATS/1.0\r\n\r\n")
    chunks = [frame[at : at + 1460] for at in range(0, len(frame), 1460)]
    messages, rest, _ = split(chunks)
    assert messages == {b"1": [parsed]}
    assert rest == b""
    assert split(chunks, set()) == ({}, frame, False)
