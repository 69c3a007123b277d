from __future__ import annotations

from suffixspec_traces.model import Message, Session, ToolCall
from suffixspec_traces.readers.calls import Call, CallMerger

ASK, ANSWER = Message("user", "a?"), Message("assistant", "a!", generated=True)
MORE, LAST = Message("user", "b?"), Message("assistant", "b!", generated=True)


def merged(*calls: Call) -> list[Session]:
    merger = CallMerger()
    for call in calls:
        merger.add(call)
    return list(merger.sessions(source="s", format_name="f", path="p"))


def texts(session: Session) -> list[str]:
    return [f"{m.content}{'*' if m.generated else ''}" for m in session.messages]


def call(name: str, inputs: list[Message], *answers: Message, **more: object) -> Call:
    return Call(name, tuple(inputs), tuple((a,) for a in answers), **more)  # type: ignore[arg-type]


def test_a_call_that_extends_another_continues_it() -> None:
    (session,) = merged(call("1", [ASK], ANSWER), call("2", [ASK, ANSWER, MORE], LAST))
    assert texts(session) == ["a?", "a!*", "b?", "b!*"]


def test_history_that_comes_back_changed_a_little_is_recognised() -> None:
    said = Message(
        "assistant",
        None,
        tool_calls=(ToolCall("f", '{"x": 1}', "c1"),),
        reasoning="hm",
        generated=True,
    )
    sent_back = Message("assistant", " ", tool_calls=(ToolCall("f", '{"x":1}', "toolu_9"),))
    (session,) = merged(call("1", [ASK], said), call("2", [ASK, sent_back, MORE], LAST))
    assert [m.generated for m in session.messages] == [False, True, False, True]
    assert session.messages[1].tool_calls == said.tool_calls


def test_times_decide_the_order() -> None:
    later = call("2", [ASK, ANSWER, MORE], LAST, timestamp=2.0)
    (session,) = merged(later, call("1", [ASK], ANSWER, timestamp=1.0))
    assert texts(session) == ["a?", "a!*", "b?", "b!*"]
    assert [m.timestamp for m in session.messages if m.generated] == [1.0, 2.0]


def test_an_edited_history_begins_a_session_and_counts_nothing_twice() -> None:
    sessions = merged(
        call("1", [ASK], ANSWER, group="g"),
        call("2", [ASK, Message("assistant", "edited"), MORE], LAST, group="g"),
    )
    assert [s.id for s in sessions] == ["g", "g#2"]
    assert texts(sessions[1]) == ["a?", "edited", "b?", "b!*"]


def test_groups_are_never_joined() -> None:
    sessions = merged(
        call("1", [ASK], ANSWER, group="g"), call("2", [ASK, ANSWER, MORE], LAST, group="h")
    )
    assert [s.id for s in sessions] == ["g", "h"]
    assert sum(s.generated_messages for s in sessions) == 2


def test_two_conversations_that_begin_alike_stay_two() -> None:
    sessions = merged(
        call("1", [ASK], ANSWER),
        call("2", [ASK], ANSWER),
        call("3", [ASK, ANSWER, MORE], LAST),
        call("4", [ASK, ANSWER, MORE], LAST),
    )
    assert [texts(s) for s in sessions] == [["a?", "a!*", "b?", "b!*"]] * 2


def test_other_choices_are_sessions_of_their_own() -> None:
    sessions = merged(call("1", [ASK], ANSWER, LAST), call("2", [ASK, ANSWER, MORE], LAST))
    assert [texts(s) for s in sessions] == [["a?", "a!*", "b?", "b!*"], ["a?", "b!*"]]


def test_unanswered_and_repeated_calls_are_left_out() -> None:
    sessions = merged(call("1", [ASK]), call("2", [ASK], ANSWER), call("2", [ASK], ANSWER))
    assert [texts(s) for s in sessions] == [["a?", "a!*"]]


def test_a_named_predecessor_is_continued_and_forked() -> None:
    sessions = merged(
        call("1", [ASK], ANSWER),
        call("2", [MORE], LAST, continues="1"),
        call("3", [ASK], LAST, continues="1"),
        call("4", [ASK], LAST, continues="unknown"),
    )
    assert [texts(s) for s in sessions] == [
        ["a?", "a!*", "b?", "b!*"],
        ["a?", "a!", "a?", "b!*"],
        ["a?", "b!*"],
    ]


def test_prompts_are_kept_once() -> None:
    history = [Message("user", "x" * 1000) for _ in range(3)]
    (session, other) = merged(
        call("1", [*history, ASK], ANSWER, group="g"),
        call("2", [*history, MORE], LAST, group="h"),
    )
    assert session.messages[0] is other.messages[0] is other.messages[2]
