"""The messages to a stream in batches, as tables of replies, and against a model of a server; servers: test_lane.py."""

import json
from pathlib import Path
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ce_nats.aio import _server_codes as codes
from ce_nats.aio.publishing._batches import (
    COMMIT,
    END,
    MAX_FAILURES,
    PING,
    START,
    TRANSITIONS,
    Adopt,
    Batches,
    Confirm,
    Control,
    EndSuspended,
    Fail,
    FailLate,
    FailTooLarge,
    FindStream,
    Finish,
    NoteDuplicates,
    Phase,
    Reply,
    Resume,
    SendAlone,
    Signal,
    Situation,
    Stored,
    Write,
)
from ce_nats.aio.publishing._pending_message import PendingMessage
from tests.support.tables import each

IDLE, OPEN, ENDING, CONFIRMING, SUSPENDED, PAUSED, ORDINARY, CLOSED = Phase
SEND, COMMITS, CHECK = Signal.SEND, Signal.COMMIT, Signal.CHECK
ACK_TIMEOUT = 5.0
NO_RESPONDERS = b"NATS/1.0 503\r\n\r\n"


class Run:
    """Messages to the stream S, with a clock. Actions are shown as text, with the tokens of messages."""

    def __init__(self, flow=100, last=0):
        self.batches = Batches("S", "b", last, flow=flow, ack_timeout=ACK_TIMEOUT)
        self.at = Situation(100.0)
        self.items = []

    def make(self, count, subject="a", size=1):
        for _ in range(count):
            number = len(self.items) + 1
            block = b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n" % number
            data = b"x" * size
            self.items.append(PendingMessage(str(number), subject, 0.0, None, data, block, None, self.at.now + 9))
        return self.items[len(self.items) - count :]

    def add(self, count, subject="a", size=1):
        return [self.batches.add(item, self.at.now) for item in self.make(count, subject, size)]

    def on(self, event):
        return [show(action) for action in self.batches.on(event, self.at)]

    def reply(self, number=1, is_ping=False, **answer):
        return self.on(Reply(number, json.dumps(answer).encode(), b"", is_ping))

    def end(self, count, seq, **more):
        return self.reply(count, stream="S", batch=self.batches.batch.id, count=count, seq=seq, **more)

    def refuse(self, number, err_code, **more):
        return self.reply(number, error={"code": 400, "err_code": err_code, "description": "x"}, **more)

    def later(self, seconds, event=CHECK):
        self.at = self.at._replace(now=self.at.now + seconds)
        return self.on(event)


def show(action):
    match action:
        case Write(batch, first, items, commits):
            return f"write {batch} {first}: {tokens(items)}{' end' * commits}"
        case Control(batch, number, operation, subject):
            return f"{ {END: 'end', PING: 'ping'}[operation] } {batch} {number} {subject}"
        case Confirm(batch, item):
            return f"confirm {batch}: {item.token}"
        case Finish(items, ack):
            return f"finish {tokens(items)} {ack.seq or ('duplicate' if ack.duplicate else '-')}"
        case Fail(item, error):
            return f"fail {item.token} {error.code}"
        case SendAlone(items):
            return f"alone {tokens(items)}"
        case FailLate(item):
            return f"late {item.token}"
        case FailTooLarge(item):
            return f"large {item.token}"
        case FindStream(subject):
            return f"find {subject}"
        case NoteDuplicates(number):
            return f"duplicates {number}"


def tokens(items):
    numbers = [int(item.token) for item in items]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) or not numbers
    return f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}"


def opened(count=40, **options):
    """Return a run with an open batch of all messages but the last one."""
    run = Run(**options)
    run.add(count)
    assert run.on(Signal.SEND_MORE) == [f"write b-1 1: 1-{count - 1}"]
    assert run.batches.phase is OPEN
    return run


def ending(count=3, **options):
    """Return a run whose batch of all messages is ending."""
    run = Run(**options)
    run.add(count)
    assert run.on(SEND)[-1].endswith("end")
    assert run.batches.phase is ENDING
    return run


def proven(count=40):
    """Return a run with an open batch after one that was stored."""
    run = ending(1)
    run.end(1, 7)
    run.add(count)
    run.on(Signal.SEND_MORE)
    return run


def suspended(count=3):
    run = ending(count)
    assert run.refuse(1, codes.FAST_UNKNOWN_ID) == []
    return run


# --- Sending ----------------------------------------------------------------------------------------------------------


def test_messages_are_collected_until_there_are_many_or_a_large_one():
    run = Run()
    assert run.add(31) == [False] * 31
    assert run.add(1) == [True]
    assert Run().add(1, size=2**16) == [True]


@each(
    ("count", "event", "expected", "phase"),
    [
        (3, SEND, ["write b-1 1: 1-3 end"], ENDING),
        (40, SEND, ["write b-1 1: 1-39"], OPEN),  # the last one is to end it
        (40, COMMITS, ["write b-1 1: 1-40 end"], ENDING),
        (3, Signal.SEND_MORE, ["write b-1 1: 1-2"], OPEN),
        (101, COMMITS, ["write b-1 1: 1-100"], OPEN),  # no more without an acknowledgement
        (1, Signal.SEND_MORE, [], OPEN),
        (0, COMMITS, [], IDLE),
        (3, Signal.LAST_WRITE, ["write b-1 1: 1-3 end"], CLOSED),
        (0, Signal.LAST_WRITE, [], CLOSED),
        (3, Signal.CLOSE, [], CLOSED),
    ],
)
def test_messages_are_written(count, event, expected, phase):
    run = Run()
    run.add(count)
    assert run.on(event) == expected
    assert run.batches.phase is phase


@each("state", [{"is_connected": False}, {"is_held": True}])
def test_nothing_is_written_while_it_cannot_be_sent(state):
    run = Run()
    run.add(3)
    before, run.at = run.at, run.at._replace(**state)
    assert run.on(SEND) == run.on(COMMITS) == run.on(Signal.LAST_WRITE) == []
    run.at = before
    assert run.on(SEND) == ["write b-1 1: 1-3 end"]


def test_open_batch_ends_with_the_message_that_was_kept_back():
    run = opened(40)
    assert run.on(COMMITS) == ["write b-1 40: 40 end"]


def test_batch_without_a_message_that_waits_ends_without_one():
    """Of the messages that are kept back, one may have failed."""
    run = opened(40)
    run.items[-1].has_failed = True
    assert run.on(COMMITS) == ["end b-1 40 a"]
    assert run.batches.phase is ENDING


def test_acknowledgements_allow_further_messages():
    run = Run(flow=50)
    run.add(200)
    assert run.on(SEND) == ["write b-1 1: 1-50"]
    assert run.reply(50, type="ack", seq=50, msgs=50) == ["write b-1 51: 51-150"]
    assert run.reply(100, type="ack", seq=100, msgs=20) == []


def test_messages_that_follow_form_the_next_batch():
    run = ending(3)
    run.add(2)
    assert run.on(SEND) == []
    assert run.end(3, 7) == ["finish 1-3 -", "write b-2 1: 4-5 end"]


def test_message_that_became_too_large_fails():
    run = Run()
    run.add(1)
    run.add(1, size=1000)
    run.at = run.at._replace(max_payload=900)
    assert run.on(SEND) == ["large 2", "write b-1 1: 1 end"]


def test_last_write_does_not_wait_for_the_batch_before():
    run = ending(3)
    run.add(2)
    assert run.on(Signal.LAST_WRITE) == ["write b-2 1: 4-5 end"]
    run.at = run.at._replace(is_connected=False, is_closed=True)
    assert run.on(CHECK) == [f"late {number}" for number in range(1, 6)]


# --- Replies ----------------------------------------------------------------------------------------------------------


def test_acknowledgements_are_believed_after_a_stored_batch():
    """Before it, they may be about messages that were proposed, and never stored."""
    run = opened(40)
    assert run.reply(39, type="ack", seq=39, msgs=39) == []
    assert run.on(COMMITS) == ["write b-1 40: 40 end"]
    assert run.end(40, 40) == ["finish 1-40 -"]
    run.add(40)
    run.on(SEND)
    assert run.reply(39, type="ack", seq=39, msgs=39) == ["finish 41-79 -"]


def test_batch_that_stored_nothing_had_duplicates():
    run = proven(41)
    assert run.reply(40, type="ack", seq=40, msgs=40) == ["finish 2-41 -"]
    run.add(1)
    run.on(COMMITS)
    assert run.end(42, 0)[0] == "duplicates 40"


def test_single_message_has_its_sequence():
    assert ending(1).end(1, 7) == ["finish 1 7"]


@each(
    ("answer", "expected", "phase"),
    [
        ({"duplicate": True, "count": 1}, ["finish 1-3 duplicate"], IDLE),
        # Another leader has lost those before, and stored it: it had no room for the expected sequence.
        ({"seq": 9, "count": 1}, ["finish 3 9", "write b-3 1: 1-2 end"], ENDING),
    ],
)
def test_duplicates_are_confirmed_by_the_last_one(answer, expected, phase):
    run = ending(3)
    assert run.end(3, 0) == ["confirm b-2: 3"]
    assert run.batches.phase is CONFIRMING
    assert run.reply(1, stream="S", batch="b-2", **answer) == expected
    assert run.batches.phase is phase


@each("err_code", [codes.WRONG_LAST_SEQUENCE, codes.DUPLICATE_IN_PROCESS])
def test_duplicates_that_are_not_stored_are_resent_after_a_pause(err_code):
    run = ending(3)
    run.end(3, 0)
    assert run.refuse(1, err_code) == []
    assert run.batches.phase is PAUSED
    assert run.later(0.4, SEND) == []
    assert run.later(0.2, SEND) == ["write b-3 1: 1-3 end"]


def test_refused_message_fails_alone():
    run = ending(5)
    assert run.refuse(3, 10054) == []
    assert run.end(2, 7) == ["finish 1-2 -", "fail 3 publish-refused", "write b-2 1: 4-5 end"]


def test_message_that_may_have_been_stored_before_its_refusal_is_uncertain():
    run = ending(2)
    run.at = run.at._replace(reconnects=1)
    assert run.on(CHECK) == ["write b-2 1: 1-2 end"]
    assert run.refuse(1, 10054)[0] == "fail 1 timeout"


def test_refusal_in_an_open_batch_ends_it():
    run = opened(40)
    assert run.refuse(3, 10054) == ["end b-1 40 a"]
    run = opened(40)
    assert run.refuse(9, 10054, type="err", seq=3) == []  # the server ends it itself
    assert run.batches.phase is ENDING
    assert run.end(2, 7)[:2] == ["finish 1-2 -", "fail 3 publish-refused"]


def test_gap_ends_the_batch_and_its_rest_is_resent():
    run = opened(40)
    assert run.reply(30, type="gap", seq=30, last_seq=19) == []
    assert run.batches.phase is ENDING
    assert run.end(19, 19) == ["finish 1-19 -", "write b-2 1: 20-40 end"]


def test_message_that_the_stream_could_not_store_is_resent_after_a_pause():
    run = ending(3)
    assert run.refuse(2, codes.TOO_MANY_REQUESTS) == []
    assert run.end(1, 7) == ["finish 1 -"]
    assert run.batches.phase is PAUSED
    assert run.later(0.4, SEND) == []
    assert run.later(0.2, SEND) == ["write b-2 1: 2-3 end"]


@each("err_code", [codes.FAST_INVALID_PATTERN, codes.FAST_INVALID_ID, codes.FAST_TOO_MANY])
def test_messages_are_published_one_by_one_if_batches_are_not_possible(err_code):
    run = ending(3)
    run.add(2)
    assert run.refuse(1, err_code) == ["alone 1-5"]
    assert run.batches.phase is ORDINARY
    assert not run.batches.is_busy


def test_older_server_stores_the_first_message_without_a_batch():
    assert ending(3).reply(1, stream="S", seq=1) == ["alone 1-3"]


@each("data", [b"", b"{", b"+ACK", b"[]", b'{"seq": "x"}', b"{}", b'{"type": "other"}', b'{"batch": "other"}'])
def test_other_replies_are_ignored(data):
    run = ending(3)
    assert run.on(Reply(1, data)) == []
    assert (run.batches.phase, len(run.batches.sent)) == (ENDING, 3)


# --- Time -------------------------------------------------------------------------------------------------------------


def test_batch_without_a_reply_is_pinged_and_resent():
    run = ending(3)
    assert run.later(0.4) == []
    assert run.later(0.2) == ["ping b-1 3 a"]
    assert run.later(0.2) == []
    assert run.later(ACK_TIMEOUT) == ["write b-2 1: 1"]  # alone, because the last batch stored nothing


def test_stream_without_any_acknowledgement_gets_ordinary_messages():
    run = ending(3)
    for item in run.items:
        item.give_up = run.at.now + 1000
    for number in range(2, MAX_FAILURES + 1):
        assert run.later(ACK_TIMEOUT) == [f"write b-{number} 1: 1"]
    assert run.later(ACK_TIMEOUT) == ["alone 1-3"]
    assert run.batches.phase is ORDINARY


def test_order_is_kept_however_many_batches_are_lost_after_the_first():
    """As during an election. Ordinary messages, which are published if no batch is possible, would lose it."""
    run = ending(1)
    run.end(1, 1)
    run.add(99)
    for item in run.items:
        item.give_up = run.at.now + 1000
    run.on(COMMITS)
    for _ in range(3 * MAX_FAILURES):
        assert run.later(ACK_TIMEOUT)[-1].startswith("write")
    assert run.batches.phase is OPEN


def test_reconnect_resends_at_once():
    run = proven(40)
    assert run.reply(20, type="ack", seq=20, msgs=20) == ["finish 2-21 -"]
    run.at = run.at._replace(reconnects=1)
    assert run.on(CHECK) == ["write b-3 1: 22-41 end"]


def test_messages_fail_after_their_time():
    run = Run()
    run.at = run.at._replace(is_connected=False)
    run.add(2)
    assert run.later(8) == []
    assert run.later(2) == ["late 1", "late 2"]


# --- Other streams ----------------------------------------------------------------------------------------------------


def test_unknown_batch_suspends_until_the_streams_are_known():
    run = suspended(3)
    run.add(1, "b")
    assert run.on(SEND) == run.on(CHECK) == []
    assert run.on(Resume(["b"])) == ["write b-2 1: 1-3 end"]
    assert run.batches.waiting == []


def test_moved_subject_leaves_with_its_messages():
    run = suspended(3)
    assert run.on(Resume(["a"])) == []
    assert not run.batches.is_busy


def test_messages_of_another_stream_are_sent_in_the_order_in_which_all_were_published():
    run = Run()
    first, _, third = run.make(3)
    run.batches.add(run.items[1], run.at.now)
    assert run.on(Adopt([third, first])) == ["write b-1 1: 1-3 end"]


def test_subject_that_streams_refuse_repeatedly_is_mapped():
    run = suspended(3)
    for _ in range(MAX_FAILURES - 1):
        assert run.batches.mapped_subject == ""
        run.on(Resume([]))
        run.later(1, SEND)
        run.refuse(1, codes.FAST_UNKNOWN_ID)
    assert run.batches.mapped_subject == "a"


def test_stream_that_was_switched_off_gets_ordinary_messages():
    run = ending(3)
    run.refuse(1, codes.FAST_DISABLED)
    assert run.on(Resume([])) == ["alone 1-3"]


def test_end_of_a_suspended_batch_says_what_is_stored():
    run = opened(40)
    run.refuse(30, codes.FAST_UNKNOWN_ID)
    batch = run.batches.batch
    assert run.on(EndSuspended("other")) == ["end b-1 40 other"]
    assert run.refuse(40, codes.FAST_UNKNOWN_ID) == []
    assert batch.is_forgotten
    assert run.end(20, 20) == ["finish 1-20 -"]
    assert run.batches.batch is not batch


def test_message_in_the_stream_proves_those_before_it():
    run = opened(40, last=10)
    run.refuse(30, codes.FAST_UNKNOWN_ID)
    assert run.on(Stored("a", 10, run.items[9].block)) == []  # before the first message of this publisher
    assert run.on(Stored("b", 20, run.items[9].block)) == []
    assert run.on(Stored("a", 20, run.items[9].block)) == ["finish 1-10 -"]


def test_no_responders_look_for_the_streams_and_resend_after_a_pause():
    run = Run()
    run.add(1)
    run.add(1, "b")
    run.on(SEND)
    assert run.on(Reply(1, b"", NO_RESPONDERS)) == ["find a", "find b"]
    assert run.batches.phase is SUSPENDED
    assert run.on(Resume([])) == []
    assert run.batches.phase is PAUSED
    assert run.later(1, SEND) == ["write b-2 1: 1"]


def test_no_responders_to_a_ping_are_about_later_messages():
    run = opened(40)
    assert run.on(Reply(39, b"", NO_RESPONDERS, is_ping=True)) == []
    assert all(item.last_error is None for item in run.items)


def test_denied_end_of_a_batch_suspends_it():
    run = ending(3)
    run.items[2].has_failed = True
    run.on(Signal.DENIED)
    assert run.batches.phase is SUSPENDED
    run = ending(3)
    run.items[1].has_failed = True  # the server ends the batch at the gap
    run.on(Signal.DENIED)
    assert run.batches.phase is ENDING
    for item in run.items:
        item.has_failed = True
    run.on(Signal.DENIED)
    assert (run.batches.phase, run.batches.waiting) == (IDLE, [])


def test_reply_of_another_stream_suspends_once():
    """The server maps the subject to one of that stream."""
    run = ending(1)
    assert run.reply(1, stream="T", batch="b-1", count=1, seq=3) == ["finish 1 3"]
    assert run.batches.phase is SUSPENDED
    run.on(Resume([]))
    run.add(1)
    run.on(SEND)
    assert run.reply(1, stream="T", batch="b-2", count=1, seq=4) == ["finish 2 4"]
    assert run.batches.phase is IDLE


# --- A model of the server --------------------------------------------------------------------------------------------


class Server:
    """
    A stream that stores batches of fast ingest, as nats-server 2.15 does.

    While its leader is without replicas, it only proposes messages, and replies nothing about them. It counts copies of
    them as duplicates, and refuses these outside of batches. The next leader does not know them.
    """

    def __init__(self):
        self.stored, self.proposed, self.batches = [], [], {}
        self.is_alone = False

    def elect(self):
        self.proposed.clear()
        self.batches.clear()
        self.is_alone = not self.is_alone

    def receive(self, batch, number, operation, data, *, is_impossible=False):
        """Yield replies to a message."""
        known = self.batches.get(batch)
        if known is None and (number > 1 or operation == END):
            yield error(codes.FAST_UNKNOWN_ID)
            return
        if known is None:
            known = self.batches[batch] = {"next": 1, "seq": 0, "is_proposed": False}
        is_gap = number > known["next"]
        if operation == PING or number < known["next"]:
            if not known["is_proposed"]:
                yield {"type": "ack", "seq": known["next"] - 1, "msgs": 10}
        elif is_impossible:
            yield from self._answer_confirmation(batch, data)
        elif operation == END or is_gap:
            yield from [{"type": "gap", "seq": number}] * is_gap
            yield from self._end(batch, known)
        else:
            known["next"] += 1
            self._store(known, data)
            if number % 10 == 0 and not known["is_proposed"]:
                yield {"type": "ack", "seq": number, "msgs": 10}
            if operation == COMMIT:
                yield from self._end(batch, known)

    def _store(self, known, data):
        if data in self.stored or data in self.proposed:
            return
        if self.is_alone:
            self.proposed.append(data)
            known["is_proposed"] = True
        else:
            self.stored.append(data)
            known["seq"] = len(self.stored)

    def _end(self, batch, known):
        del self.batches[batch]
        if not known["is_proposed"]:
            yield {"stream": "S", "batch": batch, "seq": known["seq"], "count": known["next"] - 1}

    def _answer_confirmation(self, batch, data):
        del self.batches[batch]
        if data in self.stored:
            yield {"stream": "S", "batch": batch, "seq": 1, "count": 1, "duplicate": True}
        else:
            yield error(codes.DUPLICATE_IN_PROCESS if data in self.proposed else codes.WRONG_LAST_SEQUENCE)


def error(err_code):
    return {"error": {"code": 400, "err_code": err_code, "description": "x"}}


class Losses:
    """A publisher and a server, which lose messages, replies and leaders for a while, after a first batch."""

    def __init__(self, seed, flow, loss):
        self.rng, self.loss = Random(seed), loss
        self.run, self.server = Run(flow=flow), Server()
        self.step, self.replies, self.acked = 0, [], []

    def is_lost(self):
        return 0 < self.step < 200 and self.rng.random() < self.loss

    def on(self, event):
        for action in self.run.batches.on(event, self.run.at):
            match action:
                case Write(batch, first, items, commits):
                    for number, item in enumerate(items, first):
                        self.send(batch, number, COMMIT if commits and item is items[-1] else START, item.token)
                case Control(batch, number, operation):
                    self.send(batch, number, operation, "")
                case Confirm(batch, item):
                    self.send(batch, 1, COMMIT, item.token, is_impossible=True)
                case Finish(items):
                    self.acked.extend(item.token for item in items)
                case _:
                    assert isinstance(action, NoteDuplicates), action

    def send(self, batch, number, operation, data, **options):
        if not self.is_lost():
            answers = self.server.receive(batch, number, operation, data, **options)
            self.replies += [(batch, Reply(number, json.dumps(answer).encode())) for answer in answers]

    def turn(self):
        run, batches, rng = self.run, self.run.batches, self.rng
        run.at = run.at._replace(now=run.at.now + 0.5)
        if self.step < 100:
            for item in run.make(rng.choice([0, 0, 0, 0, 1, 3, 40]) if self.step else 1):
                item.give_up = float("inf")
                batches.add(item, run.at.now)
        if (self.server.is_alone and rng.random() < 0.05) or self.is_lost():
            self.server.elect()
        for event in (SEND, CHECK, COMMITS) if self.step % 2 else (SEND,):
            self.on(event)
        replies, self.replies = self.replies, []
        for batch, reply in replies:
            if batch == batches.batch.id and not self.is_lost():
                self.on(reply)
        if batches.phase is SUSPENDED:
            self.on(Resume([]))
        self.step += 1


@given(st.integers(0, 2**32), st.sampled_from([1, 5, 50]), st.sampled_from([0.01, 0.1, 0.3]))
def test_events_are_stored_once_and_in_order_whatever_is_lost(seed, flow, loss):
    losses = Losses(seed, flow, loss)
    while losses.step < 1000 and (losses.step < 200 or losses.run.batches.is_busy):
        losses.turn()
    published = [item.token for item in losses.run.items]
    assert losses.acked == published
    assert losses.server.stored == published


# --- The table of phases ----------------------------------------------------------------------------------------------


def test_each_phase_can_be_reached_and_left():
    reached = {after for before, changes in TRANSITIONS.items() for after in changes.values() if after is not before}
    assert reached == set(TRANSITIONS) == set(Phase)
    assert [phase for phase in Phase if set(TRANSITIONS[phase].values()) == {phase}] == [ORDINARY, CLOSED]


def test_documentation_shows_the_table():
    """If it fails, copy the table to the page."""
    lines = ["| phase | next phase |", "|---|---|"]
    for phase, changes in TRANSITIONS.items():
        causes = {}
        for cause, after in changes.items():
            if after not in (phase, ORDINARY, CLOSED):
                causes.setdefault(after, []).append(cause.value)
        cells = [f"`{after.value}`: {' or '.join(values)}" for after, values in causes.items()]
        lines += [f"| `{phase.value}` | {'; '.join(cells)} |"] * bool(cells)
    table = "\n".join(lines)
    page = Path(__file__).parents[3] / "docs/architecture.md"
    assert table in page.read_text(), table
