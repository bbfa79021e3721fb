package status

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Health serves /healthz (200 while no pass hangs), /readyz (200 while the
// network is up to date, with a warning about other leases with this node's public IP;
// otherwise 503 and the problem), /startupz (200 when the network has been up to date
// since the node got it) and /metrics.
func Health(b *Board, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	without := func(check func() error) func() (string, error) {
		return func() (string, error) { return "", check() }
	}
	mux.HandleFunc("/healthz", answer(without(b.Alive)))
	mux.HandleFunc("/readyz", answer(b.readiness))
	mux.HandleFunc("/startupz", answer(without(b.reachedOnce)))
	mux.Handle("/metrics", metrics)
	return mux
}

// answer returns a handler that answers "ok" and the warning, or 503 and the problem.
func answer(check func() (warning string, problem error)) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		text := "ok"
		warning, err := check()
		switch {
		case err != nil:
			w.WriteHeader(http.StatusServiceUnavailable)
			text = err.Error()
		case warning != "":
			text += "\nwarning: " + warning
		}
		fmt.Fprintln(w, text) //nolint:errcheck // the client has gone
	}
}

// causeNoPort is a value of the attribute cause in the log.
const causeNoPort = "no-health-port"

// KeepPort serves h at an address until ctx ends; then it returns nil. Another process may
// have the port, also on purpose: KeepPort retries then, because the network must not
// depend on the port.
func KeepPort(ctx context.Context, addr string, h http.Handler, log *slog.Logger) error {
	return keepServing(ctx, func() error {
		l, err := openPort(addr)
		if err != nil {
			return err
		}
		return Serve(ctx, l, h)
	}, func(err error) {
		log.Warn("cannot serve the health port, will retry", "cause", causeNoPort, "error", err)
	})
}

// openPort listens at a TCP address. Serve closes the listener.
func openPort(addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("health and metrics on %s: %w (choose another --healthz-ip or --healthz-port; port 0 for none)", addr, err)
	}
	return l, nil
}

// Limits for a client before its connection is closed. This port may be
// reachable from the network, and a client that sends or reads nothing must not
// occupy a goroutine and a file descriptor. Answers have some ten kilobytes at
// most.
const (
	headerTimeout = 5 * time.Second  // for sending the header of a request
	readTimeout   = 10 * time.Second // for sending the whole request
	writeTimeout  = 10 * time.Second // from the end of the header until the answer is read
	idleTimeout   = time.Minute      // between two requests
	maxHeader     = 16 << 10         // bytes
)

// Serve serves h until ctx ends, with a bounded number of connections.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	return serveOn(ctx, l, &http.Server{Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader})
}

// serveOn runs a server until ctx ends. The server of a test may have other limits of time.
func serveOn(ctx context.Context, l net.Listener, server *http.Server) error {
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(limit(l)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health and metrics: %w", err)
	}
	return nil
}
