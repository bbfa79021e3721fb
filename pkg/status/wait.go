package status

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// ErrSilent is the end of a wait for a daemon that does not run.
var ErrSilent = errors.New("nobody has answered")

// Readiness asks the daemon once, at its health port if that is given, else by its socket: "" when it is ready, else what it
// says; an error when nobody answers.
func Readiness(subnetFile string, healthz netip.AddrPort) func(context.Context) (string, error) {
	ask := func(ctx context.Context) ([]byte, error) {
		return Get(ctx, Socket(subnetFile), "/readyz")
	}
	if port := healthz.Port(); port != 0 {
		ip := healthz.Addr()
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

// AwaitReady asks until the daemon is ready, ctx ends, or nobody has answered for as long as silence.
func AwaitReady(ctx context.Context, ask func(context.Context) (string, error), silence time.Duration, told func(string)) error {
	said, at, heard := "the first question had no answer", time.Now(), time.Now()
	var silent error // at the last question
	for {
		reason, err := ask(ctx)
		switch {
		case ctx.Err() != nil && silent != nil:
			return fmt.Errorf("%s: %w: %w", late(ctx), ErrSilent, silent)
		case ctx.Err() != nil:
			return fmt.Errorf("%s: %s", late(ctx), said)
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
			return fmt.Errorf("%w for %s: %w", ErrSilent, silence, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// late says how a wait has ended: by its own time, or by a signal.
func late(ctx context.Context) string {
	if errors.Is(ctx.Err(), context.Canceled) {
		return "interrupted"
	}
	return "not ready in time"
}
