// Package health tells others how the daemon is: over HTTP (/healthz, /readyz, /metrics) and to systemd.
package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// Status is what the daemon knows of itself. The zero Status is not ready.
type Status struct {
	mu      sync.Mutex
	ready   bool
	since   time.Time // of the last change of ready
	problem string
	began   time.Time // of the pass under way; zero between passes
	why     func() error
}

// stuckAfter is how long a pass may take before the process counts as dead: far longer than the largest cluster needs.
const stuckAfter = 2 * time.Minute

// Explain adds to every answer "not ready" what why returns, unless nil: an outage of the store, say.
func (s *Status) Explain(why func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.why = why
}

// Waiting says that the daemon is not ready, and what for it waits.
func (s *Status) Waiting(reason string) { s.set(false, reason) }

// InStep says that the last pass left the network as it shall be (nil), or what is not.
func (s *Status) InStep(problem error) {
	if problem == nil {
		s.set(true, "")
	} else {
		s.set(false, problem.Error())
	}
}

func (s *Status) set(ready bool, problem string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ready != s.ready || s.since.IsZero() {
		s.since = time.Now()
	}
	s.ready, s.problem, s.began = ready, problem, time.Time{}
}

// Since tells when the daemon became ready, or ceased to be; zero: it has not said anything yet.
func (s *Status) Since() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since
}

// Explanation is what Explain adds to the answer "not ready", whether that is the answer or not.
func (s *Status) Explanation() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why == nil {
		return nil
	}
	return s.why()
}

// Begin says that a pass begins; it ends with InStep.
func (s *Status) Begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began = time.Now()
}

// Ready returns nil while the network is in step, else what is not.
func (s *Status) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready {
		return nil
	}
	problem := errors.New(cmp.Or(s.problem, "starting"))
	if s.why != nil {
		return errors.Join(problem, s.why())
	}
	return problem
}

// Alive returns nil unless the daemon hangs in a pass.
func (s *Status) Alive() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.began.IsZero() && time.Since(s.began) > stuckAfter {
		return fmt.Errorf("a pass has been under way for %s", time.Since(s.began).Round(time.Second))
	}
	return nil
}

// Handler answers /healthz (200 while the process works), /readyz (200 while the network is in step; else 503 and
// what is not) and /metrics.
func Handler(s *Status, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", answer(s.Alive))
	mux.HandleFunc("/readyz", answer(s.Ready))
	mux.Handle("/metrics", metrics)
	return mux
}

func answer(check func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if err := check(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, err) //nolint:errcheck // the client has gone
			return
		}
		fmt.Fprintln(w, "ok") //nolint:errcheck // the client has gone
	}
}

// Listen binds the address, so that a port that is taken is told at once; Serve takes the listener over.
func Listen(addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("health and metrics on %s: %w (choose another --healthz-port, or 0 for none)", addr, err)
	}
	return l, nil
}

// What a client may take before its connection is closed: this port may face the network, and a client that sends or
// reads nothing must not hold a goroutine and a file descriptor. The answers have some ten kilobytes at most.
const (
	headerTimeout = 5 * time.Second  // to send the header of a request
	readTimeout   = 10 * time.Second // to send all of it
	writeTimeout  = 10 * time.Second // from the header's end until it has read the answer
	idleTimeout   = time.Minute      // between two requests
	maxHeader     = 16 << 10         // bytes
)

// Serve answers until ctx ends.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health and metrics: %w", err)
	}
	return nil
}
