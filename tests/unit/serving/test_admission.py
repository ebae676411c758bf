"""Places, the queue and its order: by example, and by whatever hypothesis thinks of."""

from __future__ import annotations

import time

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from trtspec.serving.admission import MAX_PASSED, Admission, Ticket


def test_places_then_a_line_then_nobody() -> None:
    admission = Admission(max_places=2, kv_tokens=None, max_queue_size=3)
    tickets = [Ticket(10) for _ in range(6)]

    assert [admission.arrive(ticket) for ticket in tickets] == [True, True, False, False, False, None]
    assert (admission.running, admission.waiting, admission.is_full) == (2, 3, True)
    assert admission.leave(tickets[0]) == [tickets[2]]
    assert admission.leave(tickets[3]) == []
    assert admission.leave(tickets[1]) == [tickets[4]]


def test_a_long_line_costs_an_arrival_nothing_and_a_leave_a_look() -> None:
    admission = Admission(max_places=256, kv_tokens=1000, max_queue_size=10**6)
    tickets = [Ticket(100) for _ in range(2000)]
    begin = time.process_time()
    assert [admission.arrive(ticket) for ticket in tickets] == 10 * [True] + 1990 * [False]
    assert [admission.leave(ticket) for ticket in tickets[:100]] == [[ticket] for ticket in tickets[10:110]]
    assert time.process_time() - begin < 1


def test_the_cache_is_a_bound_as_well() -> None:
    admission = Admission(max_places=8, kv_tokens=100, max_queue_size=8)
    large, larger, small = Ticket(60), Ticket(50), Ticket(40)

    assert [admission.arrive(ticket) for ticket in (large, larger, small)] == [True, False, True]
    assert admission.leave(small) == []
    assert admission.leave(large) == [larger]


def test_a_text_larger_than_the_cache_works_alone() -> None:
    admission = Admission(max_places=8, kv_tokens=100, max_queue_size=8)
    first, huge, last = Ticket(10), Ticket(1000), Ticket(10)

    assert [admission.arrive(ticket) for ticket in (first, huge)] == [True, False]
    assert admission.leave(first) == [huge]
    assert admission.arrive(last) is False
    assert admission.leave(huge) == [last]


def test_short_ones_pass_a_long_one_eight_times() -> None:
    admission = Admission(max_places=8, kv_tokens=100, max_queue_size=100)
    keeper, long = Ticket(10), Ticket(95)
    assert [admission.arrive(keeper), admission.arrive(long)] == [True, False]

    for _ in range(MAX_PASSED):
        short = Ticket(10)
        assert admission.arrive(short) is True
        admission.leave(short)
    after = Ticket(10)
    assert admission.arrive(after) is False
    assert admission.leave(keeper) == [long]
    assert admission.leave(long) == [after]


class Line(RuleBasedStateMachine):
    """Any order of arrivals and departures; what must hold is said without the admission's own means."""

    tickets = Bundle("tickets")

    @initialize(places=st.integers(1, 5), kv=st.none() | st.integers(20, 200), queue=st.integers(0, 20))
    def start(self, places: int, kv: int | None, queue: int) -> None:
        self.places, self.kv, self.queue = places, kv, queue
        self.admission = Admission(places, kv, queue)
        self.order: list[Ticket] = []  # of all that are there, as they came
        self.working: set[Ticket] = set()
        self.passed: dict[Ticket, int] = {}

    @rule(target=tickets, tokens=st.integers(1, 150))
    def arrive(self, tokens: int) -> Ticket:
        ticket = Ticket(tokens)
        answer = self.admission.arrive(ticket)
        if answer is None:
            waiting = [other for other in self.order if other not in self.working]
            assert len(waiting) == self.queue
        else:
            self.order.append(ticket)
            if answer:
                self.begin([ticket])
        return ticket

    @rule(ticket=consumes(tickets))
    def leave(self, ticket: Ticket) -> None:
        """One that is at work, one that gives up waiting, or one that was turned away."""
        if ticket in self.order:
            self.order.remove(ticket)
            self.working.discard(ticket)
            self.begin(self.admission.leave(ticket))

    def begin(self, started: list[Ticket]) -> None:
        for ticket in started:
            assert ticket in self.order
            assert ticket not in self.working, "a place was given twice"
            self.working.add(ticket)
            for other in self.order[: self.order.index(ticket)]:
                if other not in self.working and other not in started:
                    self.passed[other] = self.passed.get(other, 0) + 1

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        if not hasattr(self, "admission"):
            return
        tokens = sum(ticket.tokens for ticket in self.working)
        assert self.admission.running == len(self.working) <= self.places
        assert self.admission.waiting == len(self.order) - len(self.working) <= self.queue
        assert self.kv is None or tokens <= self.kv or len(self.working) == 1
        assert all(count <= MAX_PASSED for count in self.passed.values())
        # Whoever is first in line waits for a reason.
        first = next((ticket for ticket in self.order if ticket not in self.working), None)
        if first is not None and len(self.working) < self.places:
            assert self.working
            assert self.kv is not None
            assert tokens + first.tokens > self.kv


Line.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestLine = Line.TestCase
