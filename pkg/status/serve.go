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

	"flannel/pkg/health"
)

// acceptPath is what a withdrawal is accepted at, by POST.
const acceptPath = "/accept-withdrawal"

// Handler answers /status with what report returns, has accept let retained peers go when that is posted, and leaves
// the rest to others. Whoever reaches it may do so: it is for a socket that only root can open.
func Handler(report func() Report, accept func() (dropped int), others http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(report()) // the client has gone
	})
	mux.HandleFunc("POST "+acceptPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(Accepted{accept()}) // the client has gone
	})
	mux.Handle("/", others)
	return mux
}

// causeNoSocket is a cause in the log.
const causeNoSocket = "no-status-socket"

var errTaken = errors.New("another flanneld answers")

// lookAgain is how often the socket is tried again when it cannot be made, and looked at when it can.
const lookAgain = 2 * time.Second

// Keep answers on a socket at path, which only its owner may use, until ctx ends. It is made anew when another hand
// removes it. Where it cannot be made, that is said once: the network does not need it.
func Keep(ctx context.Context, path string, h http.Handler, log *slog.Logger) error {
	said := ""
	for ctx.Err() == nil {
		err := serve(ctx, path, h)
		if err != nil && err.Error() != said {
			said = err.Error()
			log.Warn("nobody can ask this flanneld for its status; trying again, and going on without", "cause", causeNoSocket, "error", err)
		}
		if err == nil {
			said = ""
			continue // its socket is gone
		}
		select {
		case <-ctx.Done():
		case <-time.After(lookAgain):
		}
	}
	return nil
}

// serve returns nil when ctx ends or the socket is gone, and an error where it cannot be made.
func serve(ctx context.Context, path string, h http.Handler) error {
	l, err := listen(path)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for ctx.Err() == nil && exists(path) {
			select {
			case <-ctx.Done():
			case <-time.After(lookAgain):
			}
		}
		cancel()
	}()
	return health.Serve(ctx, l, h)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// listen makes the socket. One that is there already belongs to another flanneld if it answers; else it was left
// behind.
func listen(path string) (net.Listener, error) {
	info, err := os.Lstat(path)
	switch {
	case err == nil && (info.IsDir() || info.Mode().IsRegular()):
		return nil, fmt.Errorf("status socket: %s is no socket; remove it", path)
	case err == nil:
		c, err := net.DialTimeout("unix", path, time.Second)
		if err == nil {
			_ = c.Close()
		}
		if err == nil || busy(err) {
			return nil, fmt.Errorf("status socket: %w at %s; one node needs one", errTaken, path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("status socket: remove what was left behind: %w", err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("status socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if withoutSockets(err) {
		err = ErrNoSockets
	}
	if err != nil {
		return nil, fmt.Errorf("status socket: %w", err)
	}
	if runtime.GOOS == "windows" {
		return l, nil // the directory's access list says who may
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("status socket: %w", err), l.Close())
	}
	return l, nil
}

// busy tells whether a socket that refused us has an owner, who is slow to answer.
func busy(err error) bool {
	return errors.Is(err, syscall.EAGAIN) || errors.Is(err, os.ErrDeadlineExceeded)
}
