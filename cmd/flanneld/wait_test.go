package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"flannel/pkg/health"
	"flannel/pkg/status"
)

// afterWrite is called when something is said.
type afterWrite func()

func (f afterWrite) Write(p []byte) (int, error) { f(); return len(p), nil }

// A daemon's own answers, by its port and by its socket.
func TestWait(t *testing.T) {
	l, err := health.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(l.Addr().String(), ":")
	var h health.Status
	handler := health.Handler(&h, http.NotFoundHandler())
	file := filepath.Join(t.TempDir(), "subnet.env")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- health.Serve(ctx, l, handler) }()
	ways := []string{"--healthz-port=" + port}
	if runtime.GOOS != "windows" { // Wine has no unix sockets
		go func() { ended <- status.Keep(ctx, status.Socket(file), handler, slog.New(slog.DiscardHandler)) }()
		until(t, "the socket is there", exists(status.Socket(file)))
		ways = append(ways, "--healthz-port=0")
	}
	for _, way := range ways {
		do := func(args ...string) (int, string, string) {
			t.Helper()
			return flanneldSays(t.Context(), append([]string{"--subnet-file=" + file, way, "wait"}, args...)...)
		}
		h.Waiting("waiting for the adapter")
		var out, problems strings.Builder
		ctx, enough := context.WithCancel(t.Context())
		code := run(ctx, process{args: []string{"--subnet-file=" + file, way, "wait"}, stdout: &out, stderr: io.MultiWriter(&problems, afterWrite(enough))})
		enough()
		if code != exitNotWell || out.String() != "" || !strings.HasPrefix(problems.String(), "waiting for flanneld: waiting for the adapter\n") ||
			!strings.Contains(problems.String(), "interrupted: waiting for the adapter") {
			t.Errorf("%s, not ready: %d %q %q", way, code, out.String(), problems.String())
		}
		done := make(chan string)
		go func() {
			code, out, _ := do("--timeout=1m")
			done <- fmt.Sprint(code, out)
		}()
		h.InStep(nil)
		if got := <-done; got != fmt.Sprint(exitOK, "flanneld is ready\n") {
			t.Errorf("%s, ready: %s", way, got)
		}
		if code, out, _ := do("--json"); code != exitOK || out != "{\n  \"ready\": true\n}\n" {
			t.Errorf("%s, ready: %d %s", way, code, out)
		}
	}
	stop()
	for range ways {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	for _, way := range ways {
		code, out, problems := flanneldSays(t.Context(), "--subnet-file="+file, way, "wait", "--silence=1ms", "--json")
		if code != exitNotRunning || !strings.Contains(out, `"ready": false`) || !strings.Contains(problems, "nobody has answered for 1ms") {
			t.Errorf("%s, nobody is there: %d %s %s", way, code, out, problems)
		}
	}
}

// Another program at that port is not a daemon that is ready.
func TestWaitForAnotherProgram(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	defer other.Close()
	at, err := netip.ParseAddrPort(other.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if reason, err := readiness(options{Healthz: at})(t.Context()); err == nil {
		t.Errorf("an empty answer is taken for %q", reason)
	}
}

// What is said while it lasts: each reason when it comes, and again after a minute. A daemon that begins to answer again
// ends the silence.
func TestAwaitReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		ask := func(context.Context) (string, error) {
			switch since := time.Since(start); {
			case since < 20*time.Second:
				return "", errors.New("refused")
			case since < 100*time.Second:
				return "waiting for HNS", nil
			case since < 125*time.Second:
				return "", errors.New("refused again")
			}
			return "", nil
		}
		var said []string
		told := func(reason string) { said = append(said, reason) }
		if err := awaitReady(t.Context(), ask, 30*time.Second, told); err != nil {
			t.Error(err)
		}
		if got := strings.Join(said, ", "); got != "refused, waiting for HNS, waiting for HNS, refused again" {
			t.Error(got)
		}
		start = time.Now()
		if err := awaitReady(t.Context(), ask, 10*time.Second, told); !errors.Is(err, errSilent) || !strings.Contains(err.Error(), "refused") {
			t.Error(err)
		}
		start = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
		defer cancel()
		if err := awaitReady(ctx, ask, time.Minute, told); err == nil || err.Error() != "not ready in time: waiting for HNS" {
			t.Error(err)
		}
		start = time.Now()
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := awaitReady(ctx, ask, time.Minute, told); !errors.Is(err, errSilent) || !strings.Contains(err.Error(), "refused") {
			t.Error(err)
		}
		hang := func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() }
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := awaitReady(ctx, hang, time.Minute, told); err == nil || !strings.Contains(err.Error(), "the first question had no answer") {
			t.Error(err)
		}
	})
}
