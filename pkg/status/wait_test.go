package status

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Another program at that port is not a daemon that is ready.
func TestWaitForAnotherProgram(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	defer other.Close()
	at, err := netip.ParseAddrPort(other.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if reason, err := Readiness("", at)(t.Context()); err == nil {
		t.Errorf("an empty answer is taken for %q", reason)
	}
}

// What is said while it lasts: each reason when it comes, and again after a minute. A daemon that begins to answer again
// ends the silence.
func TestAwaitReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waits = "waiting for HNS"
		start := time.Now()
		ask := func(context.Context) (string, error) {
			switch since := time.Since(start); {
			case since < 20*time.Second:
				return "", errors.New("refused")
			case since < 100*time.Second:
				return waits, nil
			case since < 125*time.Second:
				return "", errors.New("refused again")
			}
			return "", nil
		}
		var said []string
		told := func(reason string) { said = append(said, reason) }
		if err := AwaitReady(t.Context(), ask, 30*time.Second, told); err != nil {
			t.Error(err)
		}
		if got := strings.Join(said, ", "); got != "refused, waiting for HNS, waiting for HNS, refused again" {
			t.Error(got)
		}
		start = time.Now()
		if err := AwaitReady(t.Context(), ask, 10*time.Second, told); !errors.Is(err, ErrSilent) || !strings.Contains(err.Error(), "refused") {
			t.Error(err)
		}
		start = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
		defer cancel()
		if err := AwaitReady(ctx, ask, time.Minute, told); err == nil || errors.Is(err, ErrSilent) || !strings.Contains(err.Error(), waits) {
			t.Error(err)
		}
		start = time.Now()
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := AwaitReady(ctx, ask, time.Minute, told); !errors.Is(err, ErrSilent) || !strings.Contains(err.Error(), "refused") {
			t.Error(err)
		}
		hang := func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() }
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := AwaitReady(ctx, hang, time.Minute, told); err == nil || errors.Is(err, ErrSilent) {
			t.Error(err)
		}
	})
}
