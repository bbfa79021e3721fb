package main

import (
	"context"
	"errors"
	goflag "flag"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"flannel/pkg/status"
)

const waitUsage = `Waits until the daemon on this machine is ready, and says what it waits for: whenever that changes, and
once a minute. It asks /readyz at --healthz-port, and without that flag the socket beside the subnet
file (which Windows has since Server 2019).

  flanneld [--healthz-ip=IP] [--healthz-port=PORT] [--subnet-file=FILE] wait [flags]

The exit status is 3 when it is not ready in time, and 4 when nobody answers.
`

// waited is what wait answers with --json.
type waited struct {
	Ready   bool   `json:"ready"`
	Problem string `json:"problem,omitempty"` // what it waits for at the end
}

// errSilent is the end of a wait for a daemon that does not run.
var errSilent = errors.New("nobody has answered")

// wait is the command that waits for the daemon's readiness.
func wait(ctx context.Context, o options, stdout, stderr io.Writer) int {
	var flags goflag.FlagSet
	limit := limitFlag(&flags, "timeout", 15*time.Minute, "give up after this `time`, with the reason")
	silence := limitFlag(&flags, "silence", 0, "give up when nobody has answered for this `time`: the daemon has ended; default: as --timeout")
	asJSON := flags.Bool("json", false, "at the end print one JSON document: ready, problem")
	if done, code := parseCommand(&flags, waitUsage, o, stdout, stderr); done {
		return code
	}
	if *silence == 0 {
		*silence = *limit
	}
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	told := func(reason string) { fmt.Fprintln(stderr, "waiting for flanneld:", reason) } //nolint:errcheck // it will be told at the end
	err := awaitReady(ctx, readiness(o), *silence, told)
	if err != nil {
		err = fmt.Errorf("wait: %w", err)
	}
	text := ""
	if err == nil {
		text = "flanneld is ready"
	}
	exit := answer(stdout, stderr, *asJSON, waited{err == nil, problem(err)}, text, err)
	switch {
	case errors.Is(err, errSilent):
		return exitNotRunning
	case err != nil:
		return exitNotWell
	}
	return exit
}

// readiness asks the daemon once: "" when it is ready, else what it says; an error when nobody answers.
func readiness(o options) func(context.Context) (string, error) {
	ask := func(ctx context.Context) ([]byte, error) {
		return status.Get(ctx, status.Socket(o.SubnetFile), "/readyz")
	}
	if port := o.Healthz.Port(); port != 0 {
		ip := o.Healthz.Addr()
		switch {
		case ip == netip.IPv6Unspecified():
			ip = netip.IPv6Loopback()
		case ip.IsUnspecified():
			ip = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		url := "http://" + netip.AddrPortFrom(ip, port).String() + "/readyz"
		ask = func(ctx context.Context) ([]byte, error) { return fetch(ctx, url) }
	}
	return func(ctx context.Context) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		raw, err := ask(ctx)
		text := strings.TrimSpace(string(raw))
		switch {
		case err == nil && text == "":
			return "", errors.New("an empty answer, which no flanneld gives")
		case text == "ok":
			return "", err
		}
		return text, err
	}
}

// fetch gets a short text, whatever its HTTP status, and never by a proxy.
func fetch(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	return io.ReadAll(io.LimitReader(resp.Body, 4096))
}

// awaitReady asks until the daemon is ready, ctx ends, or nobody has answered for as long as silence.
func awaitReady(ctx context.Context, ask func(context.Context) (string, error), silence time.Duration, told func(string)) error {
	said, at, heard := "the first question had no answer", time.Now(), time.Now()
	var silent error // at the last question
	for {
		reason, err := ask(ctx)
		switch {
		case ctx.Err() != nil && silent != nil:
			return fmt.Errorf("%s: %w: %w", ended(ctx, "not ready in time"), errSilent, silent)
		case ctx.Err() != nil:
			return fmt.Errorf("%s: %s", ended(ctx, "not ready in time"), said)
		case err == nil && reason == "":
			return nil
		case err == nil:
			heard = time.Now()
		default:
			reason = err.Error()
		}
		silent = err
		if reason != said || time.Since(at) >= time.Minute {
			told(reason)
			said, at = reason, time.Now()
		}
		if err != nil && time.Since(heard) >= silence {
			return fmt.Errorf("%w for %s: %w", errSilent, silence, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}
