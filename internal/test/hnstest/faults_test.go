package hnstest_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/windows/hns"
)

// Load balancers as kube-proxy creates and queries them.
func TestLoadBalancers(t *testing.T) {
	m := hnstest.NewFor(t)
	p := m.Begin()
	defer p.End()
	call := func(function string, args ...string) string {
		t.Helper()
		answer, code := p.HNS(function, args...)
		if code != 0 {
			t.Fatalf("%s: %x", function, code)
		}
		return answer
	}
	const id, pod = "7804602a-559f-427d-9974-eeaf95aeb5c5", "e84fa7f0-0f23-4eb1-bb73-256fb8a3ddad"
	network := create(t, m, document("flannel.4096", hns.Overlay, 4096))
	if _, err := m.CreateEndpoint(network, json.RawMessage(`{"ID":"`+pod+`","IpConfigurations":[{"IpAddress":"10.244.5.9"}]}`)); err != nil {
		t.Fatal(err)
	}
	call("HcnCreateLoadBalancer", id, `{"HostComputeEndpoints":["`+pod+`"],"FrontendVIPs":["10.96.0.10"]}`)
	for filter, want := range map[string]string{`{}`: `["` + id + `"]`,
		`{"ID":"` + strings.ToUpper(id) + `"}`: `["` + id + `"]`, `{"ID":""}`: `[]`} {
		query, _ := json.Marshal(map[string]string{"Filter": filter})
		if got := call("HcnEnumerateLoadBalancers", string(query)); got != want {
			t.Errorf("the filter %s gives %s, want %s", filter, got, want)
		}
	}
	if got, want := call("HNSCall", "GET", "/policylists/",
		""), `{"ID":"`+id+`","References":["/endpoints/`+pod+`"]}`; !strings.Contains(got, want) {
		t.Errorf("the policy lists are %s, want %s", got, want)
	}
	if all := m.Admin().LoadBalancers(); len(all) != 1 || !strings.Contains(string(all[0]), "10.96.0.10") {
		t.Errorf("the load balancers are %s", all)
	}
}

// Calls while HNS is down, slow or broken.
func TestFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := hnstest.New()
		defer m.Close()
		m.Turn(func(k *hnstest.Knobs) { k.Down = true })
		if _, err := m.Version(); !errors.Is(err, hns.ErrUnavailable) {
			t.Errorf("down: %v", err)
		}
		m.Turn(func(k *hnstest.Knobs) { k.Down = false })

		m.Fail(hnstest.Fault{Func: "HcnCreateNetwork", Times: 1, After: true, Code: hns.RPCCallFailed})
		if _, err := m.CreateNetwork(document("cbr0", hns.L2Bridge, 0)); !errors.Is(err, hns.ErrUnavailable) ||
			len(m.Admin().Networks()) != 1 {
			t.Errorf("Fault.After: %v, %d networks", err, len(m.Admin().Networks()))
		}
		m.Fail(hnstest.Fault{Func: "HNSCall", Match: "/globals/", Delay: time.Minute})
		start := time.Now()
		if _, err := m.Version(); err != nil || time.Since(start) != time.Minute {
			t.Errorf("slow: %v after %v", err, time.Since(start))
		}
		m.Heal()
		m.Fail(hnstest.Fault{Hang: true})
		done := make(chan error)
		go func() { _, err := m.Version(); done <- err }()
		synctest.Wait()
		if _, err := m.Adapters(); err != nil { // the IP stack still works
			t.Error(err)
		}
		select {
		case err := <-done:
			t.Errorf("a hanging call returned %v", err)
		default:
		}
		m.Heal()
		if err := <-done; err != nil {
			t.Errorf("after it hung: %v", err)
		}
	})
}

// When a program ends, its handles are closed, also those that a call still
// running at that time opens.
func TestProgramEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := hnstest.New()
		defer m.Close()
		id := create(t, m, document("flannel.4096", hns.Overlay, 4096))
		p, other := m.Begin(), m.Begin()
		defer other.End()
		for _, each := range []*hnstest.Program{p, other} {
			if _, code := each.HNS("HcnOpenNetwork", id); code != 0 {
				t.Fatalf("open: %x", code)
			}
		}
		number, code := p.HNS("HcnRegisterServiceCallback", "")
		if code != 0 {
			t.Fatalf("register: %x", code)
		}
		m.Fail(hnstest.Fault{Hang: true})
		done := make(chan bool)
		go func() { p.HNS("HcnOpenNetwork", id); done <- true }()
		go func() { p.HNS("HcnRegisterServiceCallback", ""); done <- true }()
		go func() { p.Next(number); done <- true }()
		synctest.Wait()
		p.End()
		m.Heal()
		for range 3 {
			<-done
		}
		if m.OpenHandles() != 1 || len(m.OpenObjects()) != 1 {
			t.Errorf("%d handles are open, want that of the other program", m.OpenHandles())
		}
	})
}

// A restart deletes networks that are not persistent, and notifies.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := hnstest.New()
		defer m.Close()
		notified := make(chan bool, 100)
		stop, err := m.Notify(func() { notified <- true })
		if err != nil {
			t.Fatal(err)
		}
		create(t, m, document("flannel.4096", hns.Overlay, 4096))
		kept := strings.Replace(string(document("kept", hns.Overlay, 4097)), `"Flags":8,`, "", 1)
		create(t, m, json.RawMessage(kept))
		synctest.Wait()
		if len(notified) != 2 {
			t.Errorf("notified %d times about 2 networks", len(notified))
		}
		m.Restart()
		synctest.Wait()
		if len(notified) != 4 {
			t.Errorf("notified %d times, want 4: also about the restart and the lost network", len(notified))
		}
		if left := m.Admin().Networks(); len(left) != 1 || !strings.Contains(string(left[0]), "kept") {
			t.Errorf("after the restart there is %s", left)
		}
		stop()
		m.Restart()
		synctest.Wait()
		if len(notified) != 4 {
			t.Error("notified after stop")
		}
		m.Turn(func(k *hnstest.Knobs) { k.Silent = true })
		if _, err := m.Notify(func() {}); !errors.Is(err, hns.ErrUnsupported) {
			t.Errorf("Notify of a silent HNS: %v", err)
		}
	})
}

// What each knob removes when the configuration moves to the virtual adapter.
func TestLosses(t *testing.T) {
	for name, c := range map[string]struct {
		turn func(*hnstest.Knobs)
		want string // address, DNS servers, routes that programs made, with their metrics
	}{
		"nothing":  {func(k *hnstest.Knobs) {}, "10.99.0.2/24 1 0.0.0.0/0+10 169.254.169.254/32+5"},
		"DNS":      {func(k *hnstest.Knobs) { k.LoseDNS = true }, "10.99.0.2/24 0 0.0.0.0/0+10 169.254.169.254/32+5"},
		"metric":   {func(k *hnstest.Knobs) { k.LoseMetric = true }, "10.99.0.2/24 1 0.0.0.0/0+0 169.254.169.254/32+5"},
		"gateway":  {func(k *hnstest.Knobs) { k.LoseGateway = true }, "10.99.0.2/24 1 169.254.169.254/32+5"},
		"metadata": {func(k *hnstest.Knobs) { k.LoseRoutes = true }, "10.99.0.2/24 1 0.0.0.0/0+10"},
		"address":  {func(k *hnstest.Knobs) { k.APIPA, k.LoseRoutes = true, true }, "169.254.149.216/16 1"},
	} {
		m := hnstest.New()
		m.Turn(c.turn)
		metadata := hns.Route{Dst: mustPrefix("169.254.169.254/32"), NextHop: hnstest.Gateway,
			Index: m.Admin().Adapter("Ethernet").Index, Metric: 5}
		if err := m.Admin().AddRoute(metadata); err != nil {
			t.Fatal(err)
		}
		create(t, m, document("cbr0", hns.L2Bridge, 0))
		a := m.Admin().Adapter("vEthernet (Ethernet)")
		got := addresses(a) + " " + string(rune('0'+len(a.DNS)))
		for _, r := range m.Admin().Routes() {
			got += " " + r.Dst.String() + "+" + string(text(r.Metric))
		}
		if got != c.want {
			t.Errorf("%s lost: %s, want %s", name, got, c.want)
		}
		if strings.HasPrefix(c.want, "169") { // a static address replaces it
			if err := m.AddAddress(a.Index, hnstest.HostAddr); err != nil ||
				addresses(m.Admin().Adapter(a.Name)) != "10.99.0.2/24" {
				t.Errorf("set address: %v, %s", err, addresses(m.Admin().Adapter(a.Name)))
			}
		}
		m.Close()
	}
}

func text(v any) []byte { b, _ := json.Marshal(v); return b }

// A program may unregister after the machine has ended, and its events with it.
func TestUnregisterAfterTheEnd(t *testing.T) {
	m := hnstest.New()
	p := m.Begin()
	number, code := p.HNS("HcnRegisterServiceCallback", "")
	if code != 0 {
		t.Fatal(code)
	}
	m.Close()
	if _, code := p.Next(number); code == 0 {
		t.Error("there are events after the end")
	}
	p.HNS("HcnUnregisterServiceCallback", number) // without a panic
}

// A program that has ended gets no events, not even those that it had not read when its registration ended.
func TestNoEventsAfterTheProgram(t *testing.T) {
	m := hnstest.NewFor(t)
	p := m.Begin()
	number, code := p.HNS("HcnRegisterServiceCallback", "")
	if code != 0 {
		t.Fatal(code)
	}
	m.Restart() // an event, and the end of the registration
	p.End()
	if event, code := p.Next(number); code == 0 {
		t.Errorf("the program has ended, and gets the event %q", event)
	}
}
