package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"syscall"
)

// The ways in which a daemon does not answer.
var (
	ErrNotRunning = errors.New("flanneld does not run here")
	ErrNoAnswer   = errors.New("flanneld does not answer")
)

// maxAnswer bounds what is read of an answer, in bytes; 10,000 peers take 2 MB.
const maxAnswer = 256 << 20

// Ask asks the daemon at a socket how it is. The error is ErrNotRunning, ErrNoAnswer or fs.ErrPermission, with a
// sentence for the user, or another.
func Ask(ctx context.Context, path string) (Report, error) {
	var r Report
	raw, err := Get(ctx, path, "/status")
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, fmt.Errorf("what answers at %s is no flanneld: %w", path, err)
	}
	return r, nil
}

// Accepted is what came of accepting a withdrawal.
type Accepted struct {
	Dropped int `json:"dropped"` // retained peers
}

// Accept makes the daemon at a socket let its retained peers go. Errors are as of Ask.
func Accept(ctx context.Context, path string) (Accepted, error) {
	var a Accepted
	raw, err := request(ctx, path, http.MethodPost, acceptPath)
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return a, fmt.Errorf("the flanneld that answers at %s cannot retain peers: %w", path, err)
	}
	return a, nil
}

// Get fetches /status, /healthz, /readyz or /metrics from the daemon at a socket, whatever the answer's HTTP status.
func Get(ctx context.Context, path, what string) ([]byte, error) {
	return request(ctx, path, http.MethodGet, what)
}

func request(ctx context.Context, path, method, what string) ([]byte, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}}}
	req, err := http.NewRequestWithContext(ctx, method, "http://flanneld"+what, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, explain(ctx, path, err)
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, explain(ctx, path, err)
	}
	return raw, nil
}

func explain(ctx context.Context, path string, err error) error {
	var dial *net.OpError
	switch {
	case withoutSockets(err):
		return fmt.Errorf("flanneld cannot be asked: %w", ErrNoSockets)
	case !exists(path):
		return fmt.Errorf("%w: there is no %s (give the daemon's --subnet-file if it has its own)", ErrNotRunning, path)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %s is for root alone; run this as root", fs.ErrPermission, path)
	case ctx.Err() != nil || busy(err):
		return fmt.Errorf("%w at %s: it is stopped, or hangs", ErrNoAnswer, path)
	case errors.As(err, &dial) && dial.Op == "dial":
		return fmt.Errorf("%w: %s was left behind by one that has ended without a word (kill -9, a crash)", ErrNotRunning, path)
	}
	return fmt.Errorf("ask flanneld at %s: %w", path, err)
}

// ErrNoSockets is for the user; the daemon itself needs none.
var ErrNoSockets = errors.New("this system has no unix sockets (Windows has them since Windows Server 2019); look at its log, and at --healthz-port")

// wsaNoFamily is WSAEAFNOSUPPORT of Windows, a number that no other system has.
const wsaNoFamily syscall.Errno = 10047

// withoutSockets tells that the system knows no unix sockets at all.
func withoutSockets(err error) bool {
	return errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, wsaNoFamily)
}
