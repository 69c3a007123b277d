"""Concurrent requests and the token bucket, with a clock of the test's own."""

from __future__ import annotations

import pytest

from suffixspec_index.errors import LimitExceededError, UnavailableError
from suffixspec_service.admission import Admission
from suffixspec_service.callers import Tenant
from suffixspec_service.config import Limits


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_concurrent_requests_are_counted_per_tenant() -> None:
    admission = Admission()
    one = Tenant("one", Limits(concurrent_requests=2))
    with admission.admit(one), admission.admit(one):
        with pytest.raises(LimitExceededError) as error:
            admission.enter(one)
        assert error.value.retry_after >= 1
        with admission.admit(Tenant("two")):
            assert admission.running == 3
        with pytest.raises(LimitExceededError):
            admission.enter(one, 2)
    assert admission.running == 0
    admission.enter(one, 2)
    admission.leave(one, 2)
    assert admission.running_of("one") == 0


def test_a_tenant_that_owes_tokens_waits() -> None:
    clock = Clock()
    admission = Admission(clock)
    slow = Tenant("slow", Limits(tokens_per_second=10, burst_tokens=20))
    with admission.admit(slow):
        admission.charge(slow, 70)
    with pytest.raises(LimitExceededError) as error:
        admission.enter(slow)
    assert error.value.retry_after == pytest.approx(5.0)
    clock.now = 4.9
    with pytest.raises(LimitExceededError):
        admission.enter(slow)
    clock.now = 5.01
    with admission.admit(slow):
        pass


def test_the_bucket_holds_no_more_than_its_burst() -> None:
    clock = Clock()
    admission = Admission(clock)
    slow = Tenant("slow", Limits(tokens_per_second=10))  # ten seconds' worth: 100
    with admission.admit(slow):
        pass
    clock.now = 1e6
    with admission.admit(slow):
        admission.charge(slow, 101)
    with pytest.raises(LimitExceededError):
        admission.enter(slow)


def test_after_stop_nobody_enters() -> None:
    admission = Admission()
    admission.enter(Tenant("one"))
    admission.stop()
    with pytest.raises(UnavailableError):
        admission.enter(Tenant("two"))
    assert admission.running == 1
    admission.leave(Tenant("one"))
    assert admission.running == 0
