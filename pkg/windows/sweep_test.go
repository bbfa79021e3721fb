package windows

import (
	"encoding/json"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// endpoints returns the names of the endpoints, sorted.
func (w *windows) endpoints() (names []string) {
	for _, document := range w.m.Admin().Endpoints() {
		var e struct{ Name string }
		if err := json.Unmarshal(document, &e); err != nil {
			w.t.Fatal(err)
		}
		names = append(names, e.Name)
	}
	slices.Sort(names)
	return names
}

// pod adds an endpoint to a network, in a new namespace, whose ID it returns.
func (w *windows) pod(network, name string, n byte) (namespace string) {
	w.t.Helper()
	namespace = w.m.Admin().AddNamespace()
	w.endpoint(network, name, namespace, n)
	return namespace
}

func (w *windows) endpoint(network, name, namespace string, n byte) {
	w.t.Helper()
	ip := ownSubnet.Addr().As4()
	ip[3] = n
	if err := w.m.Admin().AddEndpoint(network, name, namespace, netip.AddrFrom4(ip)); err != nil {
		w.t.Fatal(err)
	}
}

// looks waits until the sweeper has looked n times more.
func (w *windows) looks(n int) { time.Sleep(time.Duration(n) * w.pace.Sweep) }

// The endpoints of pods whose namespaces were deleted without a DEL are deleted after two looks, and nothing else is,
// however HNS says what became of them.
func TestSweep(t *testing.T) {
	for _, kind := range kinds {
		for _, knobs := range []hnstest.Knobs{{}, {ForgetNamespace: true}, {OmitNamespace: true}, {ForgetNamespace: true, OmitNamespace: true, NoConditions: true}} {
			// Somebody may use an endpoint of which HNS says nothing but that it is attached.
			stays := knobs.OmitNamespace && !knobs.ForgetNamespace
			dev := devicesOf(kind)
			onWindows(t, dev, knobs, func(w *windows) {
				repaired := map[string]int{}
				w.opts.Repairs = dataplane.NewRepairs(w.opts.Log, func(what string, n int) { repaired[what] += n })
				w.restart()
				w.bring(time.Minute)
				other := `{"Name":"other","Type":"Private","SchemaVersion":{"Major":2},"Ipams":[{"Subnets":[{"IpAddressPrefix":"10.244.1.0/24"}]}]}`
				if err := w.m.Admin().CreateNetwork(other); err != nil {
					t.Fatal(err)
				}
				w.pod(dev.Name, "live_"+dev.Name, 10)
				gone := []string{w.pod(dev.Name, "gone_"+dev.Name, 11), w.pod("other", "gone_other", 12), w.pod(dev.Name, "source-vip", 14)}
				w.endpoint(dev.Name, "halfway_"+dev.Name, "", 15) // its ADD was killed
				w.endpoint(dev.Name, "somebody's", "", 16)
				w.endpoint(dev.Name, "", "", 17) // kube-proxy's, for the source VIP
				if err := w.m.Admin().AddRemoteEndpoints(dev.Name, 3); err != nil {
					t.Fatal(err)
				}
				w.endpoint(dev.Name, "docker_"+dev.Name, "", 18)
				if err := w.m.Admin().SetContainers("docker_"+dev.Name, "c1"); err != nil {
					t.Fatal(err)
				}
				before := w.endpoints()
				for _, id := range gone {
					w.m.Admin().DeleteNamespace(id)
				}
				w.looks(1)
				if got := w.endpoints(); !slices.Equal(got, before) {
					t.Errorf("%+v: after one look: %q, before %q", knobs, got, before)
				}
				w.looks(2)
				want := slices.DeleteFunc(before, func(name string) bool { return name == "gone_"+dev.Name && !stays || name == "halfway_"+dev.Name })
				if got := w.endpoints(); !slices.Equal(got, want) {
					t.Errorf("%+v: %q, want %q", knobs, got, want)
				}
				if n, deleted := w.log.Count("cause="+causeEndpointSwept), len(before)-len(want); n != deleted || repaired["endpoints"] != deleted {
					t.Errorf("logged %d, counted %d, want %d", n, repaired["endpoints"], deleted)
				}
			})
		}
	}
}

// An endpoint that is being created has no namespace yet at one look.
func TestSweepNoNewEndpoint(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{ForgetNamespace: true}, func(w *windows) {
		w.bring(time.Minute)
		w.pod("flannel.4096", "live_flannel.4096", 10)
		time.Sleep(w.pace.Sweep / 2)
		w.endpoint("flannel.4096", "new_flannel.4096", "", 11)
		w.looks(1)
		if err := w.m.Admin().JoinNamespace("new_flannel.4096", w.m.Admin().AddNamespace()); err != nil {
			t.Fatal(err)
		}
		w.looks(3)
		if got := w.endpoints(); !slices.Contains(got, "new_flannel.4096") {
			t.Error(got)
		}
	})
}

// Nothing is deleted while something cannot be read, while HNS lists no namespace, or while a container uses the endpoint.
func TestSweepUnknown(t *testing.T) {
	for _, knobs := range []hnstest.Knobs{{}, {ForgetNamespace: true}} {
		onWindows(t, overlayDevice(ownSubnet), knobs, func(w *windows) {
			w.bring(time.Minute)
			const name = "gone_flannel.4096"
			w.m.Admin().DeleteNamespace(w.pod("flannel.4096", name, 11))
			stays := func(why string) {
				t.Helper()
				w.looks(3)
				if !slices.Contains(w.endpoints(), name) {
					t.Fatalf("%+v: deleted although %s", knobs, why)
				}
			}
			stays("there was no namespace at all")
			host := w.m.Admin().AddNamespace()
			for _, f := range []hnstest.Fault{{Func: "HcnEnumerateNamespaces"}, {Func: "HcnEnumerateEndpoints"}, {Func: "HcnOpenNamespace"},
				{Func: "HcnQueryNamespaceProperties"}, {Func: "HcnQueryEndpointProperties"}, {Func: "HNSCall", Match: "/endpoints/"}} {
				f.Code = hns.RPCCallFailed
				w.m.Fail(f)
				stays(f.Func + " failed")
				w.m.Heal()
			}
			// A look that fails does not count as one of two: the next one that works is the first.
			time.Sleep(w.pace.Sweep / 2)
			w.looks(1)
			w.m.Fail(hnstest.Fault{Func: "HcnEnumerateNamespaces", Code: hns.RPCCallFailed})
			w.looks(1)
			w.m.Heal()
			w.looks(1)
			if !slices.Contains(w.endpoints(), name) {
				t.Fatalf("%+v: deleted at the first look after one that failed", knobs)
			}
			if err := w.m.Admin().SetContainers(name, "c1"); err != nil {
				t.Fatal(err)
			}
			stays("a container uses it")
			if err := w.m.Admin().SetContainers(name); err != nil {
				t.Fatal(err)
			}
			w.looks(3)
			if slices.Contains(w.endpoints(), name) {
				t.Errorf("%+v: not deleted", knobs)
			}
			w.m.Admin().DeleteNamespace(host)
		})
	}
}

// An endpoint that HNS refuses to show, whatever the code, does not keep that of another pod, and the log says so.
func TestSweepBesideUnreadable(t *testing.T) {
	for _, fault := range []hnstest.Fault{{Func: "HcnOpenEndpoint", Code: hns.InvalidParameter}, {Func: "HNSCall", Code: hns.InvalidParameter}, {Func: "HcnOpenEndpoint", Code: hns.RequestUnsupported}} {
		onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{ForgetNamespace: true}, func(w *windows) {
			w.opts.Log = slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			w.restart()
			w.bring(time.Minute)
			w.m.Admin().AddNamespace()
			for i, name := range []string{"a_flannel.4096", "odd_flannel.4096", "z_flannel.4096"} {
				w.m.Admin().DeleteNamespace(w.pod("flannel.4096", name, byte(11+i)))
			}
			for _, document := range w.m.Admin().Endpoints() {
				var e struct{ ID, Name string }
				if err := json.Unmarshal(document, &e); err != nil {
					t.Fatal(err)
				}
				if e.Name == "odd_flannel.4096" {
					fault.Match = strings.ToLower(e.ID)
					w.m.Fail(fault)
				}
			}
			w.looks(3)
			if got := w.endpoints(); !slices.Equal(got, []string{"odd_flannel.4096"}) {
				t.Errorf("%+v: %q", fault, got)
			}
			if w.log.Count("endpoint="+fault.Match) == 0 {
				t.Errorf("%+v: logged\n%s", fault, w.log)
			}
		})
	}
}

// endpointReads returns how often HNS was asked for the properties of an endpoint since ForgetLog.
func (w *windows) endpointReads() (n int) {
	for _, c := range w.m.Log() {
		if c.Func == "HcnQueryEndpointProperties" {
			n++
		}
	}
	return n
}

// kube-proxy's endpoints are read once and not again.
func TestSweepReadsOnce(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.bring(time.Minute)
		w.pod("flannel.4096", "live_flannel.4096", 10)
		if err := w.m.Admin().AddRemoteEndpoints("flannel.4096", 1000); err != nil {
			t.Fatal(err)
		}
		w.m.ForgetLog()
		w.looks(2)
		if n := w.endpointReads(); n != 1000 {
			t.Errorf("%d endpoints were read, want each remote one once", n)
		}
	})
}

// HNS does not answer one request in time: the next look reads only what the first one did not.
func TestSweepContinuesAfterTimeout(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.bring(time.Minute)
		w.pod("flannel.4096", "live_flannel.4096", 10)
		if err := w.m.Admin().AddRemoteEndpoints("flannel.4096", 1000); err != nil {
			t.Fatal(err)
		}
		w.m.ForgetLog()
		w.m.Fail(hnstest.Fault{Func: "HcnQueryEndpointProperties", Skip: 600, Times: 1, Delay: time.Minute})
		w.looks(1)
		time.Sleep(2 * time.Minute) // for the late answer
		if n := w.endpointReads(); n != 601 {
			t.Fatalf("the look that failed read %d endpoints", n)
		}
		w.looks(2)
		if n := w.endpointReads(); n != 1001 {
			t.Errorf("%d endpoints were read, want only the one without an answer twice", n)
		}
	})
}

// An endpoint that HNS refuses to delete does not keep that of another pod, and is tried again.
func TestSweepBesideUndeletable(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{ForgetNamespace: true}, func(w *windows) {
		w.bring(time.Minute)
		w.m.Admin().AddNamespace()
		for i, name := range []string{"a_flannel.4096", "odd_flannel.4096", "z_flannel.4096"} {
			w.m.Admin().DeleteNamespace(w.pod("flannel.4096", name, byte(11+i)))
		}
		for _, document := range w.m.Admin().Endpoints() {
			var e struct{ ID, Name string }
			if err := json.Unmarshal(document, &e); err != nil {
				t.Fatal(err)
			}
			if e.Name == "odd_flannel.4096" {
				w.m.Fail(hnstest.Fault{Func: "HcnDeleteEndpoint", Match: e.ID, Code: hns.InvalidParameter})
			}
		}
		w.looks(3)
		if got := w.endpoints(); !slices.Equal(got, []string{"odd_flannel.4096"}) {
			t.Errorf("one cannot be deleted: %q", got)
		}
		w.m.Heal()
		if w.looks(1); len(w.endpoints()) > 0 {
			t.Errorf("left are %q", w.endpoints())
		}
	})
}
