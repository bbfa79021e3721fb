package main

import (
	"errors"
	goflag "flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"

	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"
)

// newLog logs to --log-file or else to stderr, in the form asked for, and takes in what libraries log by klog. -v=4 and
// more is debugging, as in Kubernetes. The caller closes it.
func newLog(o options, p process) (log *slog.Logger, close func() error, err error) {
	w, close := p.stderr, func() error { return nil }
	if o.LogFile != "" {
		f, err := openLogFile(o.LogFile)
		if err != nil {
			return nil, nil, fmt.Errorf("--log-file: %w", err)
		}
		w, close = f, f.Close
	}
	h := &slog.HandlerOptions{Level: slog.Level(-o.Verbosity)}
	var handler slog.Handler = slog.NewTextHandler(w, h)
	if o.LogFormat == "json" {
		handler = slog.NewJSONHandler(w, h)
	}
	switch {
	case p.events != nil && o.LogFile != "":
		handler = slog.NewMultiHandler(handler, p.events)
	case p.events != nil:
		handler = p.events
	}
	log = slog.New(handler)
	if err := takeLibrariesLogs(o, log); err != nil {
		return nil, nil, errors.Join(err, close())
	}
	return log, close, nil
}

func takeLibrariesLogs(o options, log *slog.Logger) error {
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

// maxLogFile is when a log file becomes <name>.1 and another begins: together they take at most twice as many bytes.
const maxLogFile = 10 << 20

// logFile is what --log-file names. Should the program crash, its last words are there, too. One goroutine writes at
// a time, as those of slog's handlers do.
type logFile struct {
	path        string
	file        *os.File
	size, limit int64 // bytes; at the limit it is renamed
}

// openLogFile appends to the file at path; a missing directory is made.
func openLogFile(path string) (*logFile, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	l := &logFile{path: path, limit: maxLogFile}
	return l, l.open()
}

func (l *logFile) open() error {
	f, err := os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	l.file, l.size = f, info.Size()
	return debug.SetCrashOutput(f, debug.CrashOptions{})
}

func (l *logFile) Write(p []byte) (int, error) {
	if l.size > 0 && l.size+int64(len(p)) > l.limit {
		if err := l.rotate(); err != nil {
			return 0, err
		}
	}
	n, err := l.file.Write(p)
	l.size += int64(n)
	return n, err
}

// rotate begins another file. On Windows somebody who reads one of the two keeps it from being renamed: then this one
// goes on for a while.
func (l *logFile) rotate() error {
	_ = l.Close() // to write is what matters
	l.limit = maxLogFile
	blocked := os.Rename(l.path, l.path+".1")
	err := l.open()
	switch {
	case err != nil:
		l.limit = 0 // the next line tries again
	case blocked != nil:
		l.limit = l.size + maxLogFile/8
	}
	return err
}

func (l *logFile) Close() error {
	_ = debug.SetCrashOutput(nil, debug.CrashOptions{}) // it has the file open, too
	return l.file.Close()
}
