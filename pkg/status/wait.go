package status

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"flannel/pkg/reconcile"
)

// ErrUnreachable means that the daemon has not answered for too long, for
// example because it does not run.
var ErrUnreachable = errors.New("flanneld has not answered")

// Readiness is for the command wait. It returns a function that asks the daemon once, at its
// health port, or at its socket if the port is 0. That function returns "" if the daemon is
// ready, its answer if it is not, and an error if there was no answer.
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
		ask = func(ctx context.Context) ([]byte, error) { return fetch(ctx, nil, http.MethodGet, url, 4096) }
	}
	return func(ctx context.Context) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		raw, err := ask(ctx)
		text := strings.TrimSpace(string(raw))
		switch {
		case err == nil && text == "":
			return "", errors.New("the answer is empty: another program uses the port")
		case text == "ok" || strings.HasPrefix(text, "ok\n"): // what follows is advice
			return "", err
		}
		return text, err
	}
}

// AwaitReady calls ask, the result of Readiness, once a second until the daemon
// is ready, ctx ends, or there was no answer for maxSilence. It passes the
// reason why it waits to report: when the reason changes, and once a minute.
func AwaitReady(ctx context.Context, ask func(context.Context) (string, error), maxSilence time.Duration,
	report func(string)) error {
	reported, reportedAt, answeredAt := "no answer to the first request", time.Now(), time.Now()
	var last error // of the previous call of ask
	for {
		reason, err := ask(ctx)
		switch {
		case ctx.Err() != nil && last != nil:
			return fmt.Errorf("%s: %w: %w", endReason(ctx), ErrUnreachable, last)
		case ctx.Err() != nil:
			return fmt.Errorf("%s: %s", endReason(ctx), reported)
		case err == nil && reason == "":
			return nil
		case err == nil:
			answeredAt = time.Now()
		default:
			reason = err.Error()
		}
		last = err
		if reason != reported || time.Since(reportedAt) >= time.Minute {
			report(reason)
			reported, reportedAt = reason, time.Now()
		}
		if err != nil && time.Since(answeredAt) >= maxSilence {
			return fmt.Errorf("%w for %s: %w", ErrUnreachable, maxSilence, err)
		}
		reconcile.Pause(ctx, time.Second)
	}
}

// endReason returns why ctx ended: by a signal, or by its timeout.
func endReason(ctx context.Context) string {
	if errors.Is(ctx.Err(), context.Canceled) {
		return "interrupted"
	}
	return "not ready in time"
}
