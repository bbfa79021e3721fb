package main

import (
	"context"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"flannel/internal/test/eventually"
	"flannel/pkg/daemon"
	"flannel/pkg/status"
)

func TestAcceptWithdrawal(t *testing.T) {
	subnetFile := filepath.Join(t.TempDir(), "subnet.env")
	says := func(code int, want string, args ...string) {
		t.Helper()
		got, out, problems := flanneldSays(t.Context(), append([]string{"--subnet-file=" + subnetFile, "accept-withdrawal", "--timeout=1m"}, args...)...)
		if got != code || !strings.Contains(out+problems, want) {
			t.Errorf("it ends with %d, want %d and %q: %s%s", got, code, want, out, problems)
		}
	}
	says(exitNotRunning, status.ErrNotRunning.Error())
	retained := []int{3, 1, 0}
	accept := func() (count int) { count, retained = retained[0], retained[1:]; return count }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	board := &status.Board{}
	go func() {
		ended <- answerStatus(ctx, options{Settings: daemon.Settings{SubnetFile: subnetFile}}, board, accept, status.Health(board, http.NotFoundHandler()), slog.New(slog.DiscardHandler))
	}()
	eventually.True(t, "it answers", func() bool { _, err := status.Ask(ctx, status.Socket(subnetFile)); return err == nil })
	says(exitOK, "3 ")
	says(exitOK, `"dropped": 1`, "--json")
	says(exitOK, `"dropped": 0`, "--json")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
