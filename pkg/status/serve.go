package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"flannel/pkg/file"
	"flannel/pkg/reconcile"
)

// acceptPath is the path for POST requests that accept a withdrawal.
const acceptPath = "/accept-withdrawal"

// Handler serves the report of b at /status and the result of log, its recent lines,
// at LogPath, calls accept for a POST to acceptPath, and passes all other requests to
// others. accept drops the peers that the daemon retains after many were deleted from the
// store at once (a withdrawal), and returns their number. Handler does not authenticate
// clients: the socket must be accessible to root only.
func Handler(b *Board, log func() []byte, accept func() (dropped int), others http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(LogPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write(log()) // an error means that the client has gone
	})
	mux.HandleFunc("/status", func(w http.ResponseWriter, _ *http.Request) {
		r := b.Now()
		if err := b.Alive(); err != nil { // the cause of whatever is not ready
			r.Ready, r.Problem = false, err.Error()
		}
		writeJSON(w, r)
	})
	mux.HandleFunc("POST "+acceptPath, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, Accepted{accept()}) })
	mux.Handle("/", others)
	return mux
}

// LogPath is the path of the log's recent lines.
const LogPath = "/log"

// writeJSON answers with a value as JSON.
func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // an error means that the client has gone
}

// causeNoSocket is a value of the attribute cause in the log.
const causeNoSocket = "no-status-socket"

// errTaken means that the socket belongs to another process, which may end: Keep retries, as
// after every other error. Only tests recognize errTaken.
var errTaken = errors.New("another flanneld answers")

// Keep and KeepPort retry to listen every retryInterval. Keep checks every checkInterval that
// the socket still exists.
const (
	retryInterval = 2 * time.Second
	checkInterval = 5 * time.Second
)

// Keep serves h on a socket at path, which only its owner may use, until ctx
// ends; then it returns nil. It creates the socket again when somebody removes
// or replaces it.
func Keep(ctx context.Context, path string, h http.Handler, log *slog.Logger) error {
	return keepServing(ctx, func() error { return serve(ctx, path, h) }, func(err error) {
		log.Warn("cannot serve the status, will retry", "cause", causeNoSocket, "error", err)
	})
}

// keepServing calls serve until ctx ends, and then returns nil. If serve fails, which
// usually means that it cannot listen, keepServing calls tell with each reason once and
// retries: the network does not need what is served.
func keepServing(ctx context.Context, serve func() error, tell func(error)) error {
	told := ""
	for ctx.Err() == nil {
		err := serve()
		if err == nil {
			told = ""
			continue // such as a socket that was removed or replaced
		}
		if err.Error() != told {
			told = err.Error()
			tell(err)
		}
		reconcile.Pause(ctx, retryInterval)
	}
	return nil
}

// serve returns nil when ctx ends or the socket was removed or replaced, and an error if it
// could not be created.
func serve(ctx context.Context, path string, h http.Handler) error {
	s, err := listen(path)
	if err != nil {
		return fmt.Errorf("status socket: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			if exists, err := s.exists(); err == nil && !exists {
				break
			}
			reconcile.Wait(ctx, reconcile.OnBeat(checkInterval)) // on a beat: together with the process's other timers
		}
		cancel()
	}()
	return Serve(ctx, s, h) // nil when ctx has ended
}

// socket is a listener on a unix socket. It deletes no file but its own.
type socket struct {
	net.Listener
	path string
	file fs.FileInfo // as listen created it
}

// exists reports whether the socket is still at its path. An error means that this is not
// known.
func (s *socket) exists() (bool, error) {
	info, err := os.Lstat(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return os.SameFile(info, s.file), err // false after an error
}

// Close implements net.Listener. It removes the socket, unless someone has replaced it.
func (s *socket) Close() error {
	if exists, _ := s.exists(); exists {
		_ = os.Remove(s.path) // what stays is stale, and the next daemon removes it
	}
	return s.Listener.Close()
}

// listen creates the socket, in place of a stale one.
func listen(path string) (*socket, error) {
	if err := removeStale(path); err != nil {
		return nil, err
	}
	if err := file.MkdirAll(filepath.Dir(path)); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	switch {
	case withoutSockets(err):
		return nil, ErrNoSockets // a Windows before Server 2019
	case err != nil:
		return nil, err
	}
	if runtime.GOOS != "windows" { // there, the access control list of the directory restricts access
		err = os.Chmod(path, 0o600)
	}
	info, unknown := os.Lstat(path)
	if err = errors.Join(err, unknown); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // it would delete whatever is at path by then
	return &socket{l, path, info}, nil
}

// removeStale removes a socket to which connections are refused: its owner was killed. The
// error says what else is at path, or that it is not known whether the socket has an owner.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("%s is not a socket; remove it", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second) // the system connects at once if a daemon listens
	if err == nil {
		_ = c.Close()
	}
	switch {
	case err == nil, busy(err):
		return fmt.Errorf("%w at %s; one node needs one", errTaken, path)
	case errors.Is(err, fs.ErrNotExist): // its owner has removed it
		return nil
	case !refused(err):
		return fmt.Errorf("%s may be a socket in use; remove it if it is not: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the stale socket: %w", err)
	}
	return nil
}

// busy reports whether a failed connection means that the socket has an owner
// that does not accept it in time: the queue is full (EAGAIN), or a deadline is over.
func busy(err error) bool {
	return errors.Is(err, syscall.EAGAIN) || errors.Is(err, os.ErrDeadlineExceeded)
}
