package main

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"flannel/internal/test/eventually"
	"flannel/internal/test/logtest"
	"flannel/pkg/status"
)

// afterWrite is called when something is said.
type afterWrite func()

func (f afterWrite) Write(p []byte) (int, error) { f(); return len(p), nil }

// A daemon's own answers, by its port and by its socket.
func TestWait(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(l.Addr().String(), ":")
	board := &status.Board{}
	handler := status.Health(board, http.NotFoundHandler())
	file := filepath.Join(t.TempDir(), "subnet.env")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- status.Serve(ctx, l, handler) }()
	ways := []string{"--healthz-port=" + port}
	if runtime.GOOS != "windows" { // Wine has no unix sockets
		go func() { ended <- status.Keep(ctx, status.Socket(file), handler, slog.New(slog.DiscardHandler)) }()
		eventually.True(t, "the socket is there", exists(status.Socket(file)))
		ways = append(ways, "--healthz-port=0")
	}
	for _, way := range ways {
		do := func(args ...string) (int, string, string) {
			t.Helper()
			return flanneldSays(t.Context(), append([]string{"--subnet-file=" + file, way, "wait"}, args...)...)
		}
		const why = "waiting for the adapter"
		board.Waiting(why)
		var out, problems strings.Builder
		ctx, enough := context.WithCancel(t.Context())
		code := run(ctx, process{args: []string{"--subnet-file=" + file, way, "wait"}, stdout: &out, stderr: io.MultiWriter(&problems, afterWrite(enough))})
		enough()
		if code != exitNotReady || out.String() != "" || strings.Count(problems.String(), why) != 2 { // while it waits, and at the end
			t.Errorf("%s, not ready: %d %q %q", way, code, out.String(), problems.String())
		}
		done := make(chan int)
		go func() {
			code, _, _ := do("--timeout=1m")
			done <- code
		}()
		board.EndPass(nil)
		if got := <-done; got != exitOK {
			t.Errorf("%s, ready: %d", way, got)
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
		if code != exitNotRunning || !strings.Contains(out, `"ready": false`) || !logtest.Names(problems, status.ErrUnreachable.Error(), "1ms") {
			t.Errorf("%s, nobody is there: %d %s %s", way, code, out, problems)
		}
	}
}
