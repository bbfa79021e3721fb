package status

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"flannel/internal/test/eventually"
)

// TestReadinessOfAnotherProgram checks that an empty answer at the health port
// does not mean that the daemon is ready.
func TestReadinessOfAnotherProgram(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	defer other.Close()
	at, err := netip.ParseAddrPort(other.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if reason, err := Readiness("", at)(t.Context()); err == nil {
		t.Errorf("an empty answer is no error, but %q", reason)
	}
}

// TestReadinessErrorIsStable checks that the error of a connection does not have its own
// port, so that a problem has the same text each time: else AwaitReady would report it each
// second.
func TestReadinessErrorIsStable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ports := make(chan string, 1)
	go func() { // resets all connections
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, port, _ := net.SplitHostPort(c.RemoteAddr().String())
			_, _ = c.Read(make([]byte, 1))
			_ = c.(*net.TCPConn).SetLinger(0)
			c.Close()
			ports <- port
		}
	}()
	ask := Readiness("", netip.MustParseAddrPort(l.Addr().String()))
	// Under Wine, some of the connections end with EOF.
	eventually.True(t, "a connection ends with a reset", func() bool {
		_, err := ask(t.Context())
		if port := <-ports; err == nil || strings.Contains(err.Error(), ":"+port+"->") {
			t.Fatalf("port %s: %v", port, err)
		}
		_, reset := errors.AsType[*net.OpError](err)
		return reset
	})
}

// TestAwaitReady checks that each reason is reported when it changes and again
// after a minute, and that an answer restarts the time without an answer.
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
		var reported []string
		report := func(reason string) { reported = append(reported, reason) }
		if err := AwaitReady(t.Context(), ask, 30*time.Second, report); err != nil {
			t.Error(err)
		}
		if got := strings.Join(reported, ", "); got != "refused, waiting for HNS, waiting for HNS, refused again" {
			t.Error(got)
		}
		start = time.Now()
		if err := AwaitReady(t.Context(), ask, 10*time.Second, report); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "refused") {
			t.Error(err)
		}
		start = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
		defer cancel()
		if err := AwaitReady(ctx, ask, time.Minute, report); err == nil || errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), waits) {
			t.Error(err)
		}
		start = time.Now()
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := AwaitReady(ctx, ask, time.Minute, report); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "refused") {
			t.Error(err)
		}
		hang := func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() }
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := AwaitReady(ctx, hang, time.Minute, report); err == nil || errors.Is(err, ErrUnreachable) {
			t.Error(err)
		}
	})
}
