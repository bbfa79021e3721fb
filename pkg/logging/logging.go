// Package logging creates the log. It goes to stderr or to a file of bounded size
// and, for a Windows service, to the event log.
package logging

import (
	"context"
	"errors"
	goflag "flag"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"
)

// Options are the destinations and the verbosity of the log.
type Options struct {
	Format         string       // "json"; all other values: text
	File           string       // "": log to Stderr
	Stderr         io.Writer    // not used with File or Events
	Events         slog.Handler // event log of a Windows service; nil: no service
	Recent         *Recent      // also gets all lines, as text; may be nil
	Verbosity      int          // klog's v; from 4 on it includes slog's debug level, as in Kubernetes
	VModule        string       // klog's vmodule
	LogBacktraceAt string       // klog's log_backtrace_at
}

// ErrFile is wrapped by New's errors about Options.File. New's other errors are about invalid options.
var ErrFile = errors.New("--log-file")

// New returns the log, to which libraries that use klog also write. The caller must
// call close.
func New(o Options) (log *slog.Logger, close func() error, err error) {
	w, close := o.Stderr, func() error { return nil }
	if o.File != "" {
		f, err := openLog(o.File)
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrFile, err)
		}
		if err := f.writeCrashes(); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrFile, errors.Join(err, f.Close()))
		}
		w, close = f, f.Close
	}
	// A higher verbosity of klog is a lower level of slog: --v=4 is slog.LevelDebug,
	// which is -4.
	h := &slog.HandlerOptions{Level: slog.Level(-o.Verbosity)}
	var handler slog.Handler = slog.NewTextHandler(w, h)
	if o.Format == "json" {
		handler = slog.NewJSONHandler(w, h)
	}
	switch {
	case o.Events != nil && o.File != "":
		handler = slog.NewMultiHandler(handler, o.Events)
	case o.Events != nil:
		handler = o.Events
	}
	if o.Recent != nil {
		handler = slog.NewMultiHandler(handler, slog.NewTextHandler(o.Recent, h))
	}
	log = slog.New(handler)
	if err := redirectLibraries(o, log); err != nil {
		return nil, nil, errors.Join(err, close())
	}
	return log, close, nil
}

// redirectLibraries makes klog write to log, and gRPC write nothing.
func redirectLibraries(o Options, log *slog.Logger) error {
	// client-go logs by klog, which takes its settings as flags.
	flags := goflag.NewFlagSet("klog", goflag.ContinueOnError)
	klog.InitFlags(flags)
	for name, value := range map[string]string{"v": strconv.Itoa(o.Verbosity), "vmodule": o.VModule, "log_backtrace_at": o.LogBacktraceAt} {
		if value == "" {
			continue
		}
		if err := flags.Set(name, value); err != nil {
			return fmt.Errorf("--%s: invalid value %q: %w", name, value, err)
		}
	}
	handler := log.Handler()
	librariesLog.Store(&handler)
	setLoggers()
	return nil
}

// librariesLog is the handler of the log that New made last.
var librariesLog atomic.Pointer[slog.Handler]

// setLoggers is called once in a process: neither klog nor gRPC guards its logger by a lock, and goroutines of theirs
// can outlive the log that they began with.
var setLoggers = sync.OnceFunc(func() {
	klog.SetSlogLogger(slog.New(latest{}))
	// gRPC repeats connection errors, which the etcd manager logs once.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
})

// latest is a slog.Handler that passes everything on to librariesLog, as it is at that moment.
type latest struct{}

func (latest) Enabled(ctx context.Context, l slog.Level) bool {
	return (*librariesLog.Load()).Enabled(ctx, l)
}

func (latest) Handle(ctx context.Context, r slog.Record) error {
	return (*librariesLog.Load()).Handle(ctx, r)
}

func (latest) WithAttrs(attrs []slog.Attr) slog.Handler {
	return (*librariesLog.Load()).WithAttrs(attrs)
}

func (latest) WithGroup(name string) slog.Handler { return (*librariesLog.Load()).WithGroup(name) }
