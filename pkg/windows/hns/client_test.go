package hns

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// hanging is an HNS whose calls, but for the version, wait until they are let go.
type hanging struct {
	Calls
	let     chan struct{}
	running atomic.Int32
	made    atomic.Int32
}

func (h *hanging) wait() {
	h.made.Add(1)
	h.running.Add(1)
	<-h.let
	h.running.Add(-1)
}

func (h *hanging) Version() (Version, error)            { h.made.Add(1); return Version{13, 3}, nil }
func (h *hanging) Networks() ([]json.RawMessage, error) { h.wait(); return nil, nil }
func (h *hanging) DeleteNetwork(string) error           { h.wait(); return nil }

func TestHangingCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{let: make(chan struct{})}
		c := NewClient(h, Timing{})
		begin := time.Now()
		_, err := c.Network(t.Context(), "flannel.4096")
		if !errors.Is(err, ErrTimeout) || time.Since(begin) != 10*time.Second || !strings.Contains(err.Error(), ErrTimeout.Error()) {
			t.Errorf("%v after %s", err, time.Since(begin))
		}
		since := begin.Format(time.TimeOnly)
		// As long as it hangs, nothing waits and nothing piles up.
		time.Sleep(2 * time.Minute)
		begin = time.Now()
		for range 100 {
			_, err := c.Version(t.Context())
			if !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), since) {
				t.Fatal(err)
			}
		}
		if n := h.made.Load(); n != 1 || time.Since(begin) != 0 {
			t.Errorf("%d calls reached HNS, in %s", n, time.Since(begin))
		}
		// It ends: all is well again.
		close(h.let)
		synctest.Wait()
		if v, err := c.Version(t.Context()); err != nil || v != (Version{13, 3}) || !v.Features().RemoteSubnet {
			t.Error(v, err)
		}
		if calls, changes := c.Counts(); calls != 2 || changes != 0 {
			t.Errorf("counted %d calls, %d changes", calls, changes)
		}
	})
}

func TestHangingChangeWaitsLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{let: make(chan struct{})}
		begin := time.Now()
		if err := NewClient(h, Timing{}).DeleteNetwork(t.Context(), "1"); !errors.Is(err, ErrTimeout) || time.Since(begin) != time.Minute {
			t.Errorf("%v after %s", err, time.Since(begin))
		}
		begin = time.Now()
		c := NewClient(h, Timing{Change: 3 * time.Second})
		if err := c.DeleteNetwork(t.Context(), "1"); !errors.Is(err, ErrTimeout) || time.Since(begin) != 3*time.Second {
			t.Errorf("%v after %s", err, time.Since(begin))
		}
		if calls, changes := c.Counts(); calls != 1 || changes != 1 {
			t.Errorf("counted %d calls, %d changes", calls, changes)
		}
		close(h.let)
	})
}

// Somebody who stops does not wait for HNS.
func TestCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{let: make(chan struct{})}
		c := NewClient(h, Timing{})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		begin := time.Now()
		if _, err := c.Networks(ctx); !errors.Is(err, context.Canceled) || time.Since(begin) != time.Second {
			t.Errorf("%v after %s", err, time.Since(begin))
		}
		if _, err := c.Networks(t.Context()); !errors.Is(err, ErrTimeout) {
			t.Error(err)
		}
		close(h.let)
		synctest.Wait()
		if _, err := c.Networks(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Many at once: each waits no longer than one, and all that hangs is known.
func TestHangingTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{let: make(chan struct{})}
		c := NewClient(h, Timing{})
		errs := make(chan error)
		for range 5 {
			go func() { _, err := c.Networks(t.Context()); errs <- err }()
		}
		for range 5 {
			if err := <-errs; !errors.Is(err, ErrTimeout) {
				t.Error(err)
			}
		}
		h.let <- struct{}{}
		synctest.Wait()
		if _, err := c.Networks(t.Context()); !errors.Is(err, ErrTimeout) || h.running.Load() != 4 {
			t.Errorf("%v with %d hanging", err, h.running.Load())
		}
		close(h.let)
		synctest.Wait()
		if _, err := c.Networks(t.Context()); err != nil || h.running.Load() != 0 {
			t.Error(err)
		}
	})
}

// simple answers from what a test puts into it.
type simple struct {
	Calls
	networks, endpoints []json.RawMessage
	management          netip.Addr
	modified            []string
	err                 error
}

func (s *simple) Networks() ([]json.RawMessage, error)    { return s.networks, s.err }
func (s *simple) ManagementIP(string) (netip.Addr, error) { return s.management, s.err }
func (s *simple) EndpointIDs(string, string) (ids []string, err error) {
	for i := range s.endpoints {
		ids = append(ids, strconv.Itoa(i))
	}
	return ids, s.err
}

func (s *simple) Endpoint(id string) (json.RawMessage, error) {
	i, err := strconv.Atoi(id)
	if err != nil || s.endpoints[i] == nil {
		return nil, ErrNotFound // deleted since the list was read
	}
	return s.endpoints[i], s.err
}

func (s *simple) ModifyNetwork(_ string, r json.RawMessage) error {
	s.modified = append(s.modified, string(r))
	return s.err
}

func TestNetworkByName(t *testing.T) {
	s := &simple{management: ip("10.99.0.2"), networks: []json.RawMessage{json.RawMessage(`{"Name":"odd","Ipams":"?"}`), json.RawMessage(`garbage`),
		json.RawMessage(`{"ID":"1","Name":"cbr0","Type":"L2Bridge"}`), json.RawMessage(`{"ID":"2","Name":"cbr0"}`), json.RawMessage(answeredOverlay)}}
	c := NewClient(s, Timing{})
	if n, err := c.Network(t.Context(), "cbr0"); err != nil || n.ID != "1" || n.ManagementIP != s.management {
		t.Error(n, err)
	}
	if n, err := c.Network(t.Context(), "flannel.4096"); err != nil || n.ManagementIP != ip("10.99.0.2") || len(n.Policies) != 7 {
		t.Error(n, err)
	}
	if _, err := c.Network(t.Context(), "Cbr0"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if _, err := c.Network(t.Context(), "odd"); err == nil || errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if all, err := c.Networks(t.Context()); err != nil || len(all) != 5 || all[0].Name != "odd" || all[0].Unread == nil || all[1].Unread == nil || all[2].Unread != nil {
		t.Error(all, err)
	}
	if calls, changes := c.Counts(); calls != 6 || changes != 0 {
		t.Errorf("counted %d calls, %d changes", calls, changes)
	}
	s.err = &Error{"HcnEnumerateNetworks", RPCServerUnavailable, ""}
	if _, err := c.Network(t.Context(), "cbr0"); !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
}

func TestPoliciesInOneCall(t *testing.T) {
	s := &simple{}
	c := NewClient(s, Timing{})
	var all []Policy
	for i := range 200 {
		all = append(all, RemoteSubnet{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24), VSID: 4096, Provider: ip("10.99.0.3")}.Policy())
	}
	if err := errors.Join(c.AddPolicies(t.Context(), "1", all), c.RemovePolicies(t.Context(), "1", all[:1]), c.AddPolicies(t.Context(), "1", nil)); err != nil {
		t.Fatal(err)
	}
	if len(s.modified) != 2 || strings.Count(s.modified[0], "RemoteSubnetRoute") != 200 {
		t.Fatalf("%d calls", len(s.modified))
	}
	const want = `{"ResourceType":"Policy","RequestType":"Remove","Settings":{"Policies":[{"Type":"RemoteSubnetRoute","Settings":{"DestinationPrefix":"10.244.0.0/24",` +
		`"IsolationId":4096,"ProviderAddress":"10.99.0.3","DistributedRouterMacAddress":"00-00-00-00-00-00"}}]}}`
	if s.modified[1] != want {
		t.Errorf("%s\nwant %s", s.modified[1], want)
	}
	if calls, changes := c.Counts(); calls != 2 || changes != 2 {
		t.Errorf("counted %d calls, %d changes", calls, changes)
	}
	s.err = &Error{"HcnModifyNetwork", PolicyExists, ""}
	if err := c.AddPolicies(t.Context(), "1", all[:1]); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), ErrExists.Error()) {
		t.Error(err)
	}
}

// HNS may ignore the conditions of a list, and endpoints may be deleted while it is read.
func TestSomeEndpoints(t *testing.T) {
	s := &simple{endpoints: []json.RawMessage{json.RawMessage(`{"ID":"7","HostComputeNetwork":"AB"}`), nil, json.RawMessage(`{"ID":"8","Name":"pod","HostComputeNetwork":"cd"}`)}}
	c := NewClient(s, Timing{})
	if all, err := c.Endpoints(t.Context(), "ab"); err != nil || len(all) != 1 || all[0].ID != "7" {
		t.Error(all, err)
	}
	if all, err := c.EndpointsNamed(t.Context(), "pod"); err != nil || len(all) != 1 || all[0].ID != "8" {
		t.Error(all, err)
	}
	if e, err := c.Endpoint(t.Context(), "2"); err != nil || e.ID != "8" {
		t.Error(e, err)
	}
	s.endpoints = append(s.endpoints, json.RawMessage(`{"ID":"9","Name":"odd","HostComputeNetwork":"ab","IpConfigurations":"?"}`), json.RawMessage(`garbage`))
	if all, err := c.Endpoints(t.Context(), "ab"); err != nil || len(all) != 1 || all[0].ID != "7" {
		t.Error("beside endpoints that cannot be decoded:", all, err)
	}
	if all, err := c.EndpointsNamed(t.Context(), "pod"); err != nil || len(all) != 1 || all[0].ID != "8" {
		t.Error("beside endpoints that cannot be decoded:", all, err)
	}
	if _, err := c.EndpointsNamed(t.Context(), "odd"); err == nil {
		t.Error("the endpoint that is asked for cannot be decoded, and there is no error")
	}
	if _, err := c.Endpoint(t.Context(), "1"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

// The timeout bounds each call: a list that takes longer as a whole is read.
func TestLongList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{simple{endpoints: slices.Repeat([]json.RawMessage{json.RawMessage(`{"HostComputeNetwork":"ab"}`)}, 1000)}}
		if all, err := NewClient(s, Timing{Query: 3 * time.Second}).Endpoints(t.Context(), "ab"); err != nil || len(all) != 1000 {
			t.Errorf("%d endpoints, %v", len(all), err)
		}
	})
}

// slow takes a second to read an endpoint.
type slow struct{ simple }

func (s *slow) Endpoint(id string) (json.RawMessage, error) {
	time.Sleep(time.Second)
	return s.simple.Endpoint(id)
}
