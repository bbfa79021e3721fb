// This file is the client of the daemon's socket, for the commands: Handler (serve.go)
// answers.

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
	"os"
	"syscall"
)

// Reasons why the daemon cannot be asked. A text for the user follows each in
// the error.
var (
	ErrNotRunning = errors.New("flanneld does not run here")
	ErrNoAnswer   = errors.New("flanneld does not answer") // it runs, but is stopped or hangs
)

// maxAnswer limits the length of an answer in bytes. With 10,000 peers, it is 2
// MB.
const maxAnswer = 256 << 20

// Ask requests the Report of the daemon at a socket. Errors wrap ErrNotRunning,
// ErrNoAnswer, ErrNoSockets or fs.ErrPermission, if one of them is the reason.
func Ask(ctx context.Context, path string) (Report, error) {
	var r Report
	raw, err := Get(ctx, path, "/status")
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, fmt.Errorf("decode the answer at %s, which may not be flanneld's: %w", path, err)
	}
	return r, nil
}

// Accepted is the result of Accept.
type Accepted struct {
	Dropped int `json:"dropped"` // number of peers that are no longer retained
}

// Accept makes the daemon at a socket accept the withdrawal of leases: it
// removes the retained peers. Errors are those of Ask.
func Accept(ctx context.Context, path string) (Accepted, error) {
	var a Accepted
	raw, err := request(ctx, path, http.MethodPost, acceptPath)
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return a, fmt.Errorf("the flanneld at %s is too old to accept a withdrawal: %w", path, err)
	}
	return a, nil
}

// Get returns the body of /status, /healthz, /readyz or /metrics of the daemon
// at a socket, regardless of the HTTP status.
func Get(ctx context.Context, path, what string) ([]byte, error) {
	return request(ctx, path, http.MethodGet, what)
}

// request returns the body of an answer, regardless of the HTTP status.
func request(ctx context.Context, path, method, what string) ([]byte, error) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	raw, err := fetch(ctx, dial, method, "http://flanneld"+what, maxAnswer)
	if err != nil {
		return nil, explain(ctx, path, err)
	}
	return raw, nil
}

// fetch returns at most limit bytes of the body of an answer, regardless of the
// HTTP status. It uses no proxy. If dial is nil, it connects to the URL's host.
func fetch(ctx context.Context, dial func(ctx context.Context, network, addr string) (net.Conn, error),
	method, url string, limit int64) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	resp, err := client.Do(req)
	if err != nil {
		// The port of the local address differs each time, and AwaitReady would report the
		// same problem again.
		if e, ok := errors.AsType[*net.OpError](err); ok {
			e.Source = nil
		}
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	return io.ReadAll(io.LimitReader(resp.Body, limit))
}

// explain returns an error for the user for a failed request.
func explain(ctx context.Context, path string, err error) error {
	switch {
	case withoutSockets(err):
		return fmt.Errorf("ask flanneld: %w", ErrNoSockets)
	case !exists(path):
		return fmt.Errorf("%w: %s does not exist (use --subnet-file if the daemon has it)", ErrNotRunning, path)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: only root may use %s; run this as root", fs.ErrPermission, path)
	case ctx.Err() != nil || busy(err):
		return fmt.Errorf("%w at %s: it is stopped, or hangs", ErrNoAnswer, path)
	case refused(err):
		return fmt.Errorf("%w: %s is a stale socket of one that was killed or crashed", ErrNotRunning, path)
	}
	return fmt.Errorf("ask flanneld at %s: %w", path, err)
}

// exists reports whether there is a file at path; true also if that is not known.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// ErrNoSockets means that the status is not available. The daemon works without
// unix sockets.
var ErrNoSockets = errors.New("this system has no unix sockets (Windows has them since Windows Server 2019); " +
	"use flanneld's log, or --healthz-port")

// wsaNoFamily is WSAEAFNOSUPPORT of Windows. No other system has an error with
// this number.
const wsaNoFamily syscall.Errno = 10047

// wsaRefused is WSAECONNREFUSED of Windows. No other system has an error with this number.
const wsaRefused syscall.Errno = 10061

// refused reports whether err means that nobody listens on a socket.
func refused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, wsaRefused)
}

// withoutSockets reports whether err means that the operating system does not
// support unix sockets.
func withoutSockets(err error) bool {
	return errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, wsaNoFamily)
}
