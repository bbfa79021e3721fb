package machine

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// pretend adds pings as sendOne does, without sending them.
func (f *Flood) pretend(pings int) {
	for range pings {
		f.sent, f.answer = append(f.sent, time.Now()), append(f.answer, 0)
	}
}

// pretendAnswers answers all pings.
func (f *Flood) pretendAnswers() {
	for i := range f.answer {
		f.answer[i] = time.Millisecond
	}
}

func TestWhenTheNextPingIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		check := func(what string, f *Flood, waits bool) {
			t.Helper()
			if f.crowded() != waits {
				t.Errorf("%s: the next ping waits: %v, want %v", what, !waits, waits)
			}
		}
		f := &Flood{}
		check("at the start", f, false)
		f.pretend(1)
		f.pretendAnswers()
		f.pretend(maxWaiting - 1)
		check("after the first answer", f, false)
		f.pretend(1)
		check("too many are not answered", f, true)
		time.Sleep(slowInterval)
		check("after an interval", f, false)
		time.Sleep(answerWithin)
		f.pretend(maxWaiting - 1)
		check("the former ones are given up", f, false)
	})
}

func TestFloodHasBegun(t *testing.T) {
	m, err := New("a")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.PowerOff() }()
	f, err := m.Flood(netip.MustParseAddr("127.0.0.1"), 100)
	if err != nil {
		t.Fatal(err)
	}
	if f.answered() == 0 {
		t.Error("no ping is answered yet")
	}
	if r, err := f.Stop(); r.Lost > 0 || err != nil {
		t.Error(r, err)
	}
}

func TestWhenAnswersAreAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &Flood{}
		check := func(what string, want bool) {
			t.Helper()
			if got := f.outstanding(); got != want {
				t.Errorf("%s: an answer is awaited: %v, want %v", what, got, want)
			}
		}
		check("nothing was sent", false)
		f.pretend(3)
		check("no answer", true)
		time.Sleep(answerWithin)
		check("no answer, although one was due", true)
		f.answer[2], f.last = time.Millisecond, time.Now()
		check("the last ping is answered, others are not", true)
		time.Sleep(answerWithin)
		check("and no other answer came", false)
		f.pretendAnswers()
		f.last = time.Now()
		check("all are answered", false)
	})
}

func TestCount(t *testing.T) {
	began, interval, answered := time.Unix(1000, 0), 5*time.Millisecond, time.Millisecond
	var sent []time.Time
	for i := range 7 {
		sent = append(sent, began.Add(time.Duration(i)*interval))
	}
	got := count(sent, []time.Duration{answered, 0, 2 * answered, 0, 0, answered, 0}, interval)
	want := FloodResult{Sent: 7, Lost: 4, Outage: 2 * interval, Began: sent[3], Worst: 2 * answered, FirstLost: sent[1], LastLost: sent[6]}
	if got != want {
		t.Errorf("count: %+v, want %+v", got, want)
	}
}
