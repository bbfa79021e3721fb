// Package health serves the daemon's liveness and readiness over HTTP
// (/healthz, /readyz), together with /metrics. The daemon's loop also uses its
// Status for the watchdog of the service manager.
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

// Status is the liveness and readiness of the daemon. The loop writes it; any
// goroutine may read it. The zero Status is not ready.
type Status struct {
	mu      sync.Mutex
	ready   bool
	since   time.Time // of the last change of ready
	reached bool      // it has been ready, or Resumed was called
	problem string    // why it is not ready
	advice  string    // what the operator should know although it is ready; "": nothing
	began   time.Time // of the running pass; zero between passes
	explain func() error
	away    func() time.Time
}

// stuckAfter is how long a pass may take before the process counts as hung. The
// largest cluster needs far less.
const stuckAfter = 2 * time.Minute

// Explain sets a function whose error, unless nil, is added to the answer "not
// ready": why the store does not answer. since returns from when on, the zero Time
// if the store answers.
func (s *Status) Explain(explain func() error, since func() time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.explain, s.away = explain, since
}

// StoreAway returns since when the store does not answer, the zero Time if it does.
func (s *Status) StoreAway() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away == nil {
		return time.Time{}
	}
	return s.away()
}

// Waiting sets the daemon not ready, with what it waits for.
func (s *Status) Waiting(reason string) { s.set(false, reason) }

// EndPass records the end of a pass: nil if the network is up to date,
// otherwise the problem.
func (s *Status) EndPass(problem error) {
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
	s.reached = s.reached || ready
}

// Advise sets what the operator should know although the network is up to date;
// "": nothing. The answer to /readyz has it in a line of its own.
func (s *Status) Advise(advice string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advice = advice
}

// Advice returns what Advise has set.
func (s *Status) Advice() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.advice
}

// Resumed records that the node already had a network when this process
// started.
func (s *Status) Resumed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reached = true
}

// Since returns when the daemon became ready or not ready; zero: neither was
// set yet.
func (s *Status) Since() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since
}

// Explanation returns the result of the function that Explain has set; nil:
// there is none.
func (s *Status) Explanation() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.explain == nil {
		return nil
	}
	return s.explain()
}

// BeginPass records the start of a pass; EndPass records its end.
func (s *Status) BeginPass() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began = time.Now()
}

// Ready returns nil if the last pass left the network up to date, otherwise the
// problem.
func (s *Status) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready {
		return nil
	}
	problem := errors.New(cmp.Or(s.problem, "starting"))
	if s.explain != nil {
		return errors.Join(problem, s.explain())
	}
	return problem
}

// Reached returns nil if the network has been up to date at any time since
// the node got it, otherwise the problem.
func (s *Status) Reached() error {
	s.mu.Lock()
	reached := s.reached
	s.mu.Unlock()
	if reached {
		return nil
	}
	return s.Ready()
}

// Alive returns an error if a pass hangs.
func (s *Status) Alive() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.began.IsZero() && time.Since(s.began) > stuckAfter {
		return fmt.Errorf("a pass has been running for %s", time.Since(s.began).Round(time.Second))
	}
	return nil
}

// Handler serves /healthz (200 while no pass hangs), /readyz (200 while the
// network is up to date, with the advice; otherwise 503 and the problem), /startupz (200 when it
// has been, see Reached) and /metrics.
func Handler(s *Status, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	none := func() string { return "" }
	mux.HandleFunc("/healthz", answer(s.Alive, none))
	mux.HandleFunc("/readyz", answer(s.Ready, s.Advice))
	mux.HandleFunc("/startupz", answer(s.Reached, none))
	mux.Handle("/metrics", metrics)
	return mux
}

func answer(check func() error, advice func() string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if err := check(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, err) //nolint:errcheck // the client has gone
			return
		}
		text := "ok"
		if a := advice(); a != "" {
			text += "\nwarning: " + a
		}
		fmt.Fprintln(w, text) //nolint:errcheck // the client has gone
	}
}

// Listen binds the address, so that the start fails at once if the port is in
// use. Serve closes the listener.
func Listen(addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("health and metrics on %s: %w (choose another --healthz-port, or 0 for none)", addr, err)
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
	server := &http.Server{Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(limit(l)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health and metrics: %w", err)
	}
	return nil
}
