package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Ahead returns, for the doctor, the clock of the first server that answers minus ours, precise
// to two seconds. etcd's own protocol has no time, but its responses to plain
// HTTP have the header Date (RFC 9110, section 6.6.1).
func Ahead(ctx context.Context, o Options) (time.Duration, error) {
	secure, err := o.tls(&errorTracker{})
	if err != nil {
		return 0, err
	}
	transport := &http.Transport{TLSClientConfig: secure, DisableKeepAlives: true}
	client := http.Client{Transport: transport}
	var why error
	for _, endpoint := range o.Endpoints {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint+"/version", nil)
		if err != nil {
			return 0, fmt.Errorf("read the time from etcd: %w", err)
		}
		before := time.Now()
		resp, err := client.Do(req)
		if err != nil {
			why = err
			continue
		}
		middle := before.Add(time.Since(before) / 2)
		_ = resp.Body.Close() // only the header matters
		date, err := http.ParseTime(resp.Header.Get("Date"))
		if err != nil {
			why = fmt.Errorf("response without a valid Date header: %w", err)
			continue
		}
		// Date has whole seconds, rounded down: half a second more is right on average.
		// The server wrote it at about the middle of the request.
		return date.Add(time.Second / 2).Sub(middle), nil
	}
	return 0, fmt.Errorf("read the time from etcd: %w", cmp.Or(why, errors.New("no endpoint given")))
}
