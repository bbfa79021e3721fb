package reconcile

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var errTest = errors.New("refused")

// trace records when Work was called and when Tell was, in seconds since the start.
type trace struct {
	began  time.Time
	calls  []float64
	failed []float64
	over   []float64
}

func newTrace() *trace { return &trace{began: time.Now()} }

func (tr *trace) now() float64 { return time.Since(tr.began).Seconds() }

// work returns a Work that fails when fails reports so.
func (tr *trace) work(fails func(now float64) bool) func(context.Context) (time.Duration, error) {
	return func(context.Context) (time.Duration, error) {
		tr.calls = append(tr.calls, tr.now())
		if fails != nil && fails(tr.now()) {
			return 0, errTest
		}
		return 0, nil
	}
}

func (tr *trace) tell(err error) {
	if err != nil {
		tr.failed = append(tr.failed, tr.now())
	} else {
		tr.over = append(tr.over, tr.now())
	}
}

func always(float64) bool { return true }

// run runs r for a time, while the functions, by the second of their call, do something.
func run(r *Runner, long time.Duration, at map[float64]func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { r.Run(ctx); close(ended) }()
	for second, f := range at {
		time.AfterFunc(time.Duration(second*float64(time.Second)), f)
	}
	time.Sleep(long)
	cancel()
	<-ended
}

// every calls f every d for a time, from d/2 on: of two timers of a bubble that end at the same instant, either may be the
// first.
func every(d, long time.Duration, f func()) map[float64]func() {
	at := map[float64]func(){}
	for t := d / 2; t < long; t += d {
		at[t.Seconds()] = f
	}
	return at
}

func want(t *testing.T, what string, got []float64, want ...float64) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-6)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestResync(t *testing.T) {
	for _, c := range []struct {
		name  string
		later bool
		fails bool
		next  time.Duration
		want  []float64
	}{
		{name: "from the start", want: []float64{0, 10, 20}},
		{name: "later", later: true, want: []float64{10, 20}},
		{name: "Work asks for an earlier time", next: 4 * time.Second, want: []float64{0, 4, 8, 12, 16, 20, 24}},
		{name: "Work fails, and has no pauses", fails: true, want: []float64{0, 10, 20}},
		{name: "Work asks for a later time", next: time.Minute, want: []float64{0, 10, 20}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr := newTrace()
				work := tr.work(func(float64) bool { return c.fails })
				run(&Runner{Resync: 10 * time.Second, Later: c.later, Work: func(ctx context.Context) (time.Duration, error) {
					_, err := work(ctx)
					return c.next, err
				}}, 25*time.Second, nil)
				want(t, "calls", tr.calls, c.want...)
			})
		})
	}
}

// A burst of values on two channels is served by one call, and what arrives while Work runs by another one.
func TestCoalescing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, wakes, news := newTrace(), make(chan struct{}, 1), make(chan struct{}, 1)
		work := tr.work(nil)
		r := &Runner{Wakes: []<-chan struct{}{wakes, nil}, News: []<-chan struct{}{news}, Quiet: time.Second,
			Work: func(ctx context.Context) (time.Duration, error) {
				next, err := work(ctx)
				time.Sleep(2 * time.Second)
				return next, err
			}}
		both := func() { Notify(wakes); Notify(news); Notify(wakes) }
		run(r, 30*time.Second, map[float64]func(){5: both, 5.2: both, 5.9: both, 7: both})
		want(t, "calls", tr.calls, 0, 6, 9)
	})
}

// However often it is woken, what failed is tried again when its pause is over, and at once for news.
func TestWakesDoNotDefeatThePause(t *testing.T) {
	for name, quiet := range map[string]time.Duration{"at once": 0, "coalesced": time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr, wakes, news := newTrace(), make(chan struct{}, 1), make(chan struct{}, 1)
				r := &Runner{Wakes: []<-chan struct{}{wakes}, News: []<-chan struct{}{news}, Quiet: quiet,
					Retry: Backoff{First: time.Second, Last: 4 * time.Second}, Work: tr.work(always)}
				at := every(100*time.Millisecond, 25*time.Second, func() { Notify(wakes) })
				at[15.6] = func() { Notify(news) }
				run(r, 25*time.Second, at)
				q := quiet.Seconds()
				want(t, "calls", tr.calls, 0, 1, 3, 7, 11, 15, 15.6+q, 16.6+q, 18.6+q, 22.6+q)
			})
		})
	}
}

// A wake during the pause is not lost: the call at its end serves it, and after a success wakes count again.
func TestRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, wakes := newTrace(), make(chan struct{}, 1)
		wake := func() { Notify(wakes) }
		r := &Runner{Wakes: []<-chan struct{}{wakes}, Retry: Backoff{First: 5 * time.Second}, Tell: tr.tell,
			Work: tr.work(func(now float64) bool { return now < 12 || now > 30 && now < 40 })}
		run(r, 60*time.Second, map[float64]func(){1: wake, 12: wake, 20: wake, 31: wake})
		want(t, "calls", tr.calls, 0, 5, 10, 15, 20, 31, 36, 41)
		want(t, "told of a failure", tr.failed, 0, 31)
		want(t, "told of a success", tr.over, 15, 41)
	})
}

func TestOnce(t *testing.T) {
	other := errors.New("another reason")
	for _, c := range []struct {
		name    string
		once    Once
		results []error // one a second
		told    []int   // their indices
	}{
		{name: "success", results: []error{nil, nil}},
		{name: "the same error", results: []error{errTest, errTest, errTest}, told: []int{0}},
		{name: "recovery, and again", results: []error{errTest, nil, nil, errTest, nil}, told: []int{0, 1, 3, 4}},
		{name: "another error", results: []error{errTest, other, other, errTest}, told: []int{0, 1, 3}},
		{name: "repeated", once: Once{Repeat: 2 * time.Second}, results: []error{errTest, errTest, errTest, errTest, errTest}, told: []int{0, 2, 4}},
		{name: "too short to count", once: Once{Grace: 2 * time.Second}, results: []error{errTest, errTest, errTest, nil, errTest, nil}},
		{name: "long enough", once: Once{Grace: 2 * time.Second}, results: []error{errTest, other, errTest, errTest, nil}, told: []int{3, 4}},
		{name: "without a text", results: []error{errors.New(""), errors.New("")}, told: []int{0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var told []int
			for i, err := range c.results {
				if c.once.Due(err, time.Unix(int64(i), 0)) {
					told = append(told, i)
				}
			}
			if !slices.Equal(told, c.told) {
				t.Errorf("told of %v, want %v", told, c.told)
			}
		})
	}
}

func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrace()
		r := &Runner{Retry: Backoff{First: time.Second}, Work: tr.work(func(now float64) bool { return now < 3 })}
		if err := r.Until(context.Background()); err != nil {
			t.Error(err)
		}
		want(t, "calls", tr.calls, 0, 1, 2, 3)

		ctx, cancel := context.WithTimeout(context.Background(), 2500*time.Millisecond)
		defer cancel()
		if err := (&Runner{Retry: Backoff{First: time.Second}, Work: tr.work(always)}).Until(ctx); !errors.Is(err, errTest) {
			t.Errorf("it never succeeded: %v", err)
		}
		work := func(ctx context.Context) (time.Duration, error) { <-ctx.Done(); return 0, ctx.Err() }
		if err := (&Runner{Work: work}).Until(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it was never tried: %v", err)
		}
	})
}

// The end of the context ends Run in each state, and an error that comes with it is not told.
func TestEnd(t *testing.T) {
	wakes := func(c chan struct{}) []<-chan struct{} { return []<-chan struct{}{c} }
	for _, c := range []struct {
		name  string
		r     Runner
		woken bool
	}{
		{name: "idle", r: Runner{Work: newTrace().work(nil)}},
		{name: "failed", r: Runner{Work: newTrace().work(always), Retry: Backoff{First: time.Hour}}},
		{name: "quiet", r: Runner{Work: newTrace().work(nil), Quiet: time.Hour}, woken: true},
		{name: "working", r: Runner{Work: func(ctx context.Context) (time.Duration, error) { <-ctx.Done(); return 0, ctx.Err() }}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr, wake := newTrace(), make(chan struct{}, 1)
				c.r.Wakes, c.r.Later, c.r.Tell = wakes(wake), c.woken, tr.tell
				if c.woken {
					Notify(wake)
				}
				ctx, cancel := context.WithCancel(context.Background())
				time.AfterFunc(time.Minute, cancel)
				c.r.Run(ctx)
				want(t, "end", []float64{tr.now()}, 60)
				if c.name != "failed" {
					want(t, "told", tr.failed)
				}
			})
		})
	}
}

func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Backoff{First: time.Second, Last: 4 * time.Second}
		tr, calls := newTrace(), 0
		for range 120 { // a caller comes ten times a second
			if err := b.Do(func() error { tr.calls = append(tr.calls, tr.now()); calls++; return errTest }); !errors.Is(err, errTest) {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		want(t, "tries", tr.calls, 0, 1, 3, 7, 11)
		if left := time.Until(b.Next()); left != 3*time.Second {
			t.Errorf("next try in %v", left)
		}
		b.Clear()
		if err := b.Do(func() error { return nil }); err != nil || b.Err() != nil || !b.Next().IsZero() {
			t.Errorf("%v, %v, next %v", err, b.Err(), b.Next())
		}
		for range 100 {
			if d := (&Backoff{First: time.Second, Jitter: true}).Fail(errTest); d < 750*time.Millisecond || d >= 1250*time.Millisecond {
				t.Errorf("pause with jitter: %v", d)
			}
		}
	})
}

// What is due on beats is due at the same instants, whenever it began, and never later than it asks for.
func TestBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var mu sync.Mutex
		calls := map[time.Duration][]time.Duration{} // by Resync
		ctx, cancel := context.WithCancel(t.Context())
		for _, resync := range []time.Duration{time.Second, 1500 * time.Millisecond, 5 * time.Second} {
			r := Runner{Resync: resync, Later: true, Beats: true, Work: func(context.Context) (time.Duration, error) {
				mu.Lock()
				defer mu.Unlock()
				calls[resync] = append(calls[resync], time.Since(began))
				return 0, nil
			}}
			go r.Run(ctx)
			synctest.Wait()
			time.Sleep(300 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		cancel()
		synctest.Wait()
		beats := calls[time.Second]
		for i := 1; i < len(beats); i++ {
			if pause := beats[i] - beats[i-1]; pause != time.Second {
				t.Errorf("%v is between two beats", pause)
			}
		}
		for resync, at := range calls {
			if len(at) < int(time.Minute/resync) {
				t.Errorf("resync of %v: at %v", resync, at)
			}
			for i := range at {
				if !slices.Contains(beats, at[i]) || i > 0 && at[i]-at[i-1] > resync {
					t.Errorf("resync of %v: at %v", resync, at[:i+1])
				}
			}
		}
		for _, d := range []time.Duration{0, time.Millisecond, 999 * time.Millisecond} {
			if at := OnBeat(d); time.Until(at) != d {
				t.Errorf("what is due in %v is due in %v", d, time.Until(at))
			}
		}
	})
}
