// Command pod is the only program of the image flannel-lab-pod. Without an
// argument it holds the sandbox of a pod, as pause does.
//
//	pod serve    answers HTTP requests on port 8080 with its host name and the address that it sees
//	pod get URL  requests a URL over a new connection and prints the answer
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pod:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 0:
		signal.Ignore(syscall.SIGCHLD) // the kernel reaps orphans
		<-ctx.Done()
		return nil
	case args[0] == "serve":
		return serve(ctx)
	case args[0] == "get" && len(args) == 2:
		return get(args[1])
	}
	return fmt.Errorf("unknown arguments %q: want serve, or get URL", args)
}

func serve(ctx context.Context) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	s := &http.Server{Addr: ":8080", Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s sees %s\n", host, r.RemoteAddr)
	})}
	context.AfterFunc(ctx, func() { _ = s.Close() })
	if err := s.ListenAndServe(); ctx.Err() == nil {
		return err
	}
	return nil
}

func get(url string) error {
	client := http.Client{Timeout: 10 * time.Second}
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}
