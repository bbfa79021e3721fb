package status

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"flannel/internal/test/eventually"
	"flannel/internal/test/logtest"
	"flannel/pkg/dataplane"
)

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(body))
}

// A port that another process has is opened when it is free, and the reason is logged once.
func TestTakenPort(t *testing.T) {
	t.Parallel()                            // KeepPort retries every 2 s
	taken, err := openPort("127.84.71.1:0") // no other test takes a port of this address while it is free
	if err != nil {
		t.Fatal(err)
	}
	addr := taken.Addr().String()
	var log logtest.Log
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- KeepPort(ctx, addr, Health(&Board{}, http.NotFoundHandler()), log.Logger()) }()
	logged := func() bool { return len(log.With("cause="+causeNoPort).Naming("error", "--healthz-port", addr)) == 1 }
	eventually.True(t, "the reason is logged", logged)
	taken.Close()
	eventually.Nil(t, "the port answers", func() error {
		resp, err := http.Get("http://" + addr + "/healthz")
		if err == nil {
			resp.Body.Close()
		}
		return err
	})
	if !logged() || log.Count() != 1 {
		t.Errorf("the log:\n%s", &log)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestServe(t *testing.T) {
	l, err := openPort("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openPort(l.Addr().String()); err == nil || !strings.Contains(err.Error(), "--healthz-port") {
		t.Errorf("a port that is taken gives %v, want an error that names the flag", err)
	}
	b := &Board{}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, Health(b, http.NotFoundHandler())) }()
	url := "http://" + l.Addr().String()
	reached, outage, conflict := false, "", ""
	for _, step := range []struct {
		do   func()
		code int
		body string
	}{
		{func() {}, 503, "starting"},
		{func() { b.Waiting("waiting for etcd") }, 503, "waiting for etcd"},
		{func() { b.Add(OfStore, func(r *Report) { r.Outage = outage }); outage = "etcd does not answer" }, 503, "waiting for etcd\netcd does not answer"},
		{func() { b.EndPass(nil) }, 200, "ok"},
		{func() { b.BeginPass() }, 200, "ok"},
		{func() { outage = "" }, 200, "ok"},
		{func() { b.Add(OfNode, func(r *Report) { r.Conflict = conflict }); conflict = "two leases" }, 200, "ok\nwarning: two leases"},
		{func() { b.EndPass(errors.New("dataplane: list routes: no")) }, 503, "dataplane: list routes: no"},
		{func() { b.EndPass(nil); conflict = "" }, 200, "ok"},
	} {
		step.do()
		if code, body := get(t, url+"/readyz"); code != step.code || body != step.body {
			t.Errorf("/readyz answers %d %q, want %d %q", code, body, step.code, step.body)
		}
		if reached = reached || step.code == 200; reached {
			step.code, step.body = 200, "ok"
		}
		if code, body := get(t, url+"/startupz"); code != step.code || body != step.body {
			t.Errorf("/startupz answers %d %q, want %d %q", code, body, step.code, step.body)
		}
		if code, body := get(t, url+"/healthz"); code != 200 || body != "ok" {
			t.Errorf("/healthz answers %d %q", code, body)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Serve ended with %v", err)
	}
}

func TestResumed(t *testing.T) {
	b := &Board{}
	b.Resumed()
	if r := b.Now(); r.Ready || r.Problem == "" || b.reachedOnce() != nil {
		t.Errorf("ready: %t %q, reached: %v", r.Ready, r.Problem, b.reachedOnce())
	}
}

// A report has the named parts only, each from the functions that were added, in their order.
func TestNow(t *testing.T) {
	b := &Board{}
	b.Add(OfProcess, func(r *Report) { r.PID, r.Started = 7, noon })
	b.Add(OfPeers, func(r *Report) { r.Peers = append(r.Peers, Peer{Name: "a"}) })
	b.Add(OfDataplane, func(r *Report) { r.Peers[0].Tunnels = []dataplane.TunnelReport{{Sent: 1}} })
	if r := b.Now(OfProcess); r.PID != 7 || r.Since != noon || r.Peers == nil || len(r.Peers) > 0 || r.Errors == nil {
		t.Errorf("one part: %+v", r)
	}
	if r := b.Now(); r.PID != 7 || len(r.Peers) != 1 || len(r.Peers[0].Tunnels) != 1 {
		t.Errorf("all parts: %+v", r)
	}
}

// reported is a board with one part.
func reported(r Report) *Board {
	b := &Board{}
	b.Add(OfProcess, func(to *Report) { *to = r })
	return b
}

func TestAHungPassIsNotAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &Board{}
		b.EndPass(nil)
		b.BeginPass()
		time.Sleep(stuckAfter)
		if err := b.Alive(); err != nil {
			t.Errorf("dead too early: %v", err)
		}
		time.Sleep(time.Second)
		if err := b.Alive(); err == nil {
			t.Error("a pass that hangs is taken for alive")
		}
		for path, want := range map[string]string{"/readyz": "ok\n", "/status": `"ready":false`} { // the network still is as the last pass left it
			w := httptest.NewRecorder()
			Handler(b, nil, nil, Health(b, http.NotFoundHandler())).ServeHTTP(w, httptest.NewRequest("GET", path, nil))
			if !strings.Contains(w.Body.String(), want) {
				t.Errorf("%s of a daemon with a hung pass: %s", path, w.Body)
			}
		}
		b.EndPass(nil)
		time.Sleep(time.Hour)
		if err := b.Alive(); err != nil {
			t.Errorf("idle is not dead: %v", err)
		}
	})
}

// dial starts a server of h and returns a connection to it.
func dial(t *testing.T, h http.Handler) net.Conn {
	t.Helper()
	l, err := openPort("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, h) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// A client that sends no end of its header, or of its request, is disconnected.
func TestSlowSenders(t *testing.T) {
	for name, sent := range map[string]string{
		"header": "GET /healthz HTTP/1.1\r\nHost: x\r\n",
		"body":   "POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := dial(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
			if _, err := io.WriteString(c, sent); err != nil {
				t.Fatal(err)
			}
			// The end of the connection ends the copy; a server that waits for
			// ever is ended by go test.
			_, _ = io.Copy(io.Discard, c)
		})
	}
}

// A client that does not read the answer is disconnected.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	written := make(chan error, 1)
	c := dial(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for chunk := make([]byte, 1<<20); ; {
			if _, err := w.Write(chunk); err != nil {
				written <- err
				return
			}
		}
	}))
	if _, err := io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-written
}
