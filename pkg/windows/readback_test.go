package windows

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// HNS reads back something else than it was asked for. Neither a pass nor a restart makes the network again, with the journal
// or, for what HNS only leaves out or writes in another way, without; another configuration still does.
func TestReadBack(t *testing.T) {
	for name, turn := range map[string]func(*hnstest.Knobs){
		"as written":    func(*hnstest.Knobs) {},
		"case":          func(k *hnstest.Knobs) { k.OtherCase = true },
		"host bits":     func(k *hnstest.Knobs) { k.HostBits = true },
		"no VSID":       func(k *hnstest.Knobs) { k.OmitVSID = true },
		"no gateway":    func(k *hnstest.Knobs) { k.OmitGateway = true },
		"no subnets":    func(k *hnstest.Knobs) { k.OmitSubnets = true },
		"other gateway": func(k *hnstest.Knobs) { k.OtherGateway = true },
		"all": func(k *hnstest.Knobs) {
			k.OtherCase, k.HostBits, k.OmitVSID, k.OmitGateway = true, true, true, true
		},
	} {
		for _, kind := range kinds {
			t.Run(fmt.Sprintf("%s, %s", name, kind), func(t *testing.T) {
				knobs := hnstest.Knobs{}
				turn(&knobs)
				onWindows(t, devicesOf(kind), knobs, func(w *windows) { w.staysAfterRestarts(name != "other gateway") })
			})
		}
	}
}

// staysAfterRestarts checks that restarts keep the network, with pods on it, and that another subnet does not.
func (w *windows) staysAfterRestarts(withoutJournal bool) {
	w.bring(time.Minute)
	w.mends(time.Minute)
	id := w.network.ID
	if _, err := w.m.CreateEndpoint(id, hns.EncodeEndpoint(hns.Endpoint{Name: "pod", Network: id, IPs: []netip.Prefix{netip.MustParsePrefix("10.244.1.9/24")}})); err != nil {
		w.t.Fatal(err)
	}
	for _, forget := range []bool{false, withoutJournal} {
		if forget {
			if err := os.Remove(w.opts.journalPath()); err != nil {
				w.t.Fatal(err)
			}
		}
		w.restart()
		w.m.ForgetLog()
		w.bring(0)
		w.mends(time.Minute)
		if got := w.changed(); got != "" || w.network.ID != id || w.log.Count("cause="+causeNetworkRemade) > 0 {
			w.t.Errorf("a restart changed\n%s", got)
		}
	}
	w.devices = slices.Clone(w.devices)
	edit(&w.devices[0], func(n *dataplane.Network) { n.Subnets = []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")} })
	w.bring(time.Minute)
	w.mends(time.Minute)
	if w.network.ID == id {
		w.t.Error("another subnet did not make the network again")
	}
}

// The call that makes the network times out, and HNS makes it after the daemon was killed: the next run adopts it.
func TestMadeAfterTimeout(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{OmitVSID: true, OtherCase: true}, func(w *windows) {
		w.m.Fail(hnstest.Fault{Func: "HcnCreateNetwork", Times: 1, Delay: 20*time.Second + offbeat})
		if err := w.pass(); err == nil || errors.Is(err, hns.ErrExists) {
			t.Fatalf("got %v", err)
		}
		w.restart()
		time.Sleep(time.Minute)
		w.bring(time.Minute)
		if len(w.m.Admin().Networks()) != 1 || w.log.Count("cause="+causeNetworkRemade) > 0 {
			t.Errorf("logged\n%s", w.log)
		}
	})
}
