"""Which lane a subject has, when streams change."""

from ce_nats.aio.publishing._routes import UNKNOWN, Routes


def routes(**streams):
    table = Routes()
    for name, (patterns, lane) in streams.items():
        table.set_stream(name, patterns, lane)
    return table


def test_subject_has_the_lane_of_its_stream():
    table = routes(A=(["a.>", "b"], "lane a"), C=(["c.*"], None))
    assert [table.find(subject) for subject in ("a.1", "a.1.2", "b", "c.1")] == ["lane a", "lane a", "lane a", None]
    assert [table.find(subject) for subject in ("a", "c", "c.1.2", "d")] == [UNKNOWN] * 4
    assert (table.lane_of("A"), table.lane_of("C"), table.lane_of("other")) == ("lane a", None, None)


def test_later_lookup_takes_precedence():
    table = routes(A=(["a.>"], "lane a"), B=(["a.2", "b"], "lane b"))
    assert (table.find("a.1"), table.find("a.2")) == ("lane a", "lane b")
    assert (table.find("a.2", {"A"}), table.find("b", {"A"}), table.find("a.2", {"A", "B"})) == (
        "lane a",
        UNKNOWN,
        "lane b",
    )
    table.set_stream("A", ["a.1", "a.2"], "lane a")  # it has moved back
    assert (table.find("a.2"), table.find("a.3")) == ("lane a", UNKNOWN)
    assert sorted(table.lanes_on("a.2")) == ["lane a", "lane b"]


def test_table_is_empty_until_a_stream_is_found():
    table = routes()
    assert not table.has_streams
    table.set_stream("A", [], None)
    assert table.has_streams


def test_streams_without_a_lane_have_none():
    table = routes(A=(["a"], None), B=(["a"], "lane b"))
    assert list(table.lanes_on("a")) == ["lane b"]
    assert list(table.lanes_on("b")) == []


def test_lookup_forgets_subjects():
    """Each of them may be one that has moved."""
    table = routes(A=(["a.>"], "lane a"))
    table.remember("a.1", "lane a")
    assert table.by_subject == {"a.1": "lane a"}
    table.set_stream("B", ["b"], None)
    assert table.by_subject == {}


def test_number_of_subjects_is_bounded():
    table = routes()
    by_subject = table.by_subject
    for number in range(10_000):
        table.remember(str(number), None)
    assert table.by_subject is by_subject
    assert "9999" in by_subject
    assert len(by_subject) < 5_000
