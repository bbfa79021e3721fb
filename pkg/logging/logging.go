// Package logging makes the log: to stderr or a file that does not grow for ever, and of a Windows service to the event log.
package logging

import (
	"errors"
	goflag "flag"
	"fmt"
	"io"
	"log/slog"
	"strconv"

	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"
)

// Options say where the log goes, and how much.
type Options struct {
	Format         string       // "json", else text
	File           string       // "": Stderr
	Stderr         io.Writer    // nil for a service, which has none
	Events         slog.Handler // the event log of a Windows service, beside a file; else nil
	Verbosity      int          // klog's v
	VModule        string       // klog's, as given
	LogBacktraceAt string       // klog's, as given
}

// New logs to the file or else to stderr, in the form asked for, and takes in what libraries log by klog. A verbosity of 4
// and more is debugging, as in Kubernetes. The caller closes it.
func New(o Options) (log *slog.Logger, close func() error, err error) {
	w, close := o.Stderr, func() error { return nil }
	if o.File != "" {
		f, err := openLogFile(o.File)
		if err != nil {
			return nil, nil, fmt.Errorf("--log-file: %w", err)
		}
		w, close = f, f.Close
	}
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
	log = slog.New(handler)
	if err := takeLibrariesLogs(o, log); err != nil {
		return nil, nil, errors.Join(err, close())
	}
	return log, close, nil
}

func takeLibrariesLogs(o Options, log *slog.Logger) error {
	flags := goflag.NewFlagSet("klog", goflag.ContinueOnError)
	klog.InitFlags(flags)
	for name, value := range map[string]string{"v": strconv.Itoa(o.Verbosity), "vmodule": o.VModule, "log_backtrace_at": o.LogBacktraceAt} {
		if value == "" {
			continue
		}
		if err := flags.Set(name, value); err != nil {
			return fmt.Errorf("--%s: %q is not what klog takes: %w", name, value, err)
		}
	}
	klog.SetSlogLogger(log)
	// What gRPC has to say of a connection, the etcd manager says once.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	return nil
}
