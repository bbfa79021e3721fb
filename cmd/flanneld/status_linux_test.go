package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/eventually"
	"flannel/pkg/daemon"
	"flannel/pkg/status"
)

func TestStatus(t *testing.T) {
	subnetFile := filepath.Join(t.TempDir(), "subnet.env")
	ask := func(args ...string) (code int, stdout, stderr string) {
		var out, err bytes.Buffer
		code = run(t.Context(), process{args: append([]string{"--subnet-file=" + subnetFile, "status", "--timeout=1m"}, args...), stdout: &out, stderr: &err})
		return code, out.String(), err.String()
	}
	expect := func(what string, wantCode int, wantOut, wantErr string, args ...string) {
		t.Helper()
		code, stdout, stderr := ask(args...)
		if code != wantCode || !strings.Contains(stdout, wantOut) || !strings.Contains(stderr, wantErr) {
			t.Errorf("%s: exit code %d, want %d; said %q, %q", what, code, wantCode, stdout, stderr)
		}
	}
	expect("help", exitOK, "-json", "", "--help")
	expect("a wrong flag", exitUsage, "", "-colour", "--colour")
	expect("an argument", exitUsage, "", `"now"`, "now")
	expect("an unknown format", exitUsage, "", `"yaml"`, "-o", "yaml")
	expect("no daemon", exitNotRunning, "", status.ErrNotRunning.Error())

	hung, err := net.Listen("unix", status.Socket(subnetFile))
	if err != nil {
		t.Fatal(err)
	}
	expect("a daemon that hangs", exitNoAnswer, "", status.ErrNoAnswer.Error(), "--timeout=50ms")
	hung.(*net.UnixListener).SetUnlinkOnClose(false)
	hung.Close()
	expect("a daemon that was killed", exitNotRunning, "", status.Socket(subnetFile))

	board := &status.Board{}
	o := options{Settings: daemon.Settings{SubnetFile: subnetFile}}
	o.addProcess(board)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- answerStatus(ctx, o, board, func() int { return 0 }, status.Health(board, http.NotFoundHandler()), slog.New(slog.DiscardHandler))
	}()
	eventually.True(t, "it listens", func() bool { code, _, _ := ask(); return code != exitNotRunning })
	expect("a table of peers", exitNotReady, "REASON", "", "--peers")
	expect("a wide table", exitNotReady, "HANDSHAKE", "", "-o=wide")
	expect("JSON", exitNotReady, `"peersKnown": false`, "", "-o", "json")
	const waits, away = "waiting for a subnet lease", "etcd is away"
	board.Waiting(waits)
	board.Add(status.OfStore, func(r *status.Report) { r.Outage, r.OutageSince = away, time.Now() })
	expect("a daemon that waits", exitNotReady, waits+"\n          "+away+"\noutage    "+away, "")
	board.EndPass(nil)
	expect("an up-to-date daemon", exitOK, "network ", "")
	code, stdout, _ := ask("--json")
	var r status.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK || !r.Ready || r.Outage != away || r.Since.Before(r.Started) {
		t.Errorf("--json: %d, %v, %+v", code, err, r)
	}
	if raw, err := status.Get(t.Context(), status.Socket(subnetFile), "/readyz"); err != nil || string(raw) != "ok\n" {
		t.Errorf("/readyz says %q, %v", raw, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
